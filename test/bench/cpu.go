package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cpuTimes are the processor times of the processes of this machine by group, in milliseconds. They are empty
// where there is no /proc.
type cpuTimes struct {
	client, controllers, postgres float64
}

// parentOf returns the parent of a process; 0 when it is not of this machine.
func parentOf(pid int) int {
	fields, _ := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	if fields == nil {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// statOf returns the fields of a file stat of /proc from the state on, and the id of the process.
func statOf(path string) (fields []string, pid int) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, 0 // it has ended
	}
	open, end := bytes.IndexByte(raw, '('), bytes.LastIndexByte(raw, ')')
	if open < 0 || end < open {
		return nil, 0
	}
	if fields = strings.Fields(string(raw[end+1:])); len(fields) < 13 {
		return nil, 0
	}
	pid, _ = strconv.Atoi(strings.TrimSpace(string(raw[:open])))
	return fields, pid
}

// cpuNow reads the times; server is the first process of PostgreSQL, which has the times of its ended
// processes.
func cpuNow(server int) (t cpuTimes) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		fields, pid := statOf(path)
		if fields == nil {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		switch took := (user + system) * 10; { // a hundred ticks a second
		case pid == os.Getpid():
			t.client += took
		case pid == server && server != 0 && len(fields) > 14:
			user, _ = strconv.ParseFloat(fields[13], 64)
			system, _ = strconv.ParseFloat(fields[14], 64)
			t.postgres += (user + system) * 10
		case parent == server && server != 0:
			t.postgres += took
		case parent == os.Getpid() && pid != server:
			t.controllers += took
		}
	}
	return t
}

// since returns the times that were used after t for each of n operations.
func (t cpuTimes) since(server int, n float64) cpuTimes {
	now := cpuNow(server)
	return cpuTimes{(now.client - t.client) / n, (now.controllers - t.controllers) / n, (now.postgres - t.postgres) / n}
}

func (t cpuTimes) sum() float64 { return t.client + t.controllers + t.postgres }

func (t cpuTimes) String() string {
	return fmt.Sprintf("%.2f ms (client %.2f, controllers %.2f, PostgreSQL %.2f)", t.sum(), t.client, t.controllers,
		t.postgres)
}
