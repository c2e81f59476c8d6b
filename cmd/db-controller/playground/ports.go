package playground

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports come in blocks, below the range of outgoing connections, one of which could otherwise take a port
// before a server listens.
const (
	firstPort = 20_000
	blockSize = 100
	blocks    = 120
)

// taken has the blocks of ports that FreeAddresses uses. A process listens on the first port of each of its
// blocks as long as it runs, so that no other playground takes the port of a server that is stopped for a
// moment.
var taken struct {
	sync.Mutex
	guards []net.Listener // guarded by Mutex
	ports  []int          // guarded by Mutex; of the last block, not returned yet
}

// FreeAddresses returns n addresses on loopback on which no process listens, and that neither this process
// nor another one that runs has got before.
func FreeAddresses(n int) ([]string, error) {
	taken.Lock()
	defer taken.Unlock()
	var out []string
	for len(out) < n {
		if len(taken.ports) == 0 {
			if err := takeBlock(); err != nil {
				return nil, err
			}
		}
		address := loopback(taken.ports[0])
		taken.ports = taken.ports[1:]
		if free(address) { // a server without a playground may have it
			out = append(out, address)
		}
	}
	return out, nil
}

// takeBlock takes a block of which no process has the first port.
func takeBlock() error {
	var last error
	for _, block := range rand.Perm(blocks) {
		first := firstPort + block*blockSize
		guard, err := net.Listen("tcp", loopback(first))
		if err != nil {
			last = err
			continue
		}
		taken.guards = append(taken.guards, guard)
		for port := first + 1; port < first+blockSize; port++ {
			taken.ports = append(taken.ports, port)
		}
		return nil
	}
	return fmt.Errorf("find a free port: %w", last)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
