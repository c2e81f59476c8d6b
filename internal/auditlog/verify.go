package auditlog

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds a line.
const maxLine = 1 << 20

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Chain is the part of a log that was verified so far. The zero value begins with any line; the first line of
// a log has no previous one.
type Chain struct {
	Lines uint64
	Seq   uint64 // of the last line
	Hash  string // of the last line
	First uint64 // Seq of the first line
	// Begun is the number of lines that begin a log, after others: its file was new when the process started.
	// A cut before such a line is not noticed.
	Begun int
}

// Verify reads lines that follow those before. Its error names the line, which is the first that is not as it
// was written.
func (c *Chain) Verify(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if err := c.next(lines.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

var (
	errForm    = errors.New("it is not a line of an audit log")
	errChanged = errors.New("its hash is not that of its content: it was changed")
	errGap     = errors.New("it does not follow the line before: lines were removed, inserted or changed between them")
)

func (c *Chain) next(line []byte) error {
	content, hash, ok := split(line)
	if !ok {
		return errForm
	}
	if hashOf(content) != hash {
		return errChanged
	}
	var e entry
	if err := json.Unmarshal(append(bytes.Clone(content), '}'), &e); err != nil {
		return errForm
	}
	begins := e.Seq == 1 && e.Previous == ""
	if (e.Previous == "") != (e.Seq == 1) || c.Lines > 0 && !begins && (e.Seq != c.Seq+1 || e.Previous != c.Hash) {
		return errGap
	}
	if begins && c.Lines > 0 {
		c.Begun++
	}
	if c.Lines == 0 {
		c.First = e.Seq
	}
	c.Lines, c.Seq, c.Hash = c.Lines+1, e.Seq, hash
	return nil
}

// split returns the content of a line that is hashed, and the hash.
func split(line []byte) (content []byte, hash string, ok bool) {
	i := bytes.LastIndex(line, []byte(hashField))
	if i < 0 {
		return nil, "", false
	}
	rest := line[i+len(hashField):]
	if len(rest) != 2*sha256.Size+2 || string(rest[2*sha256.Size:]) != `"}` {
		return nil, "", false
	}
	return line[:i], string(rest[:2*sha256.Size]), true
}
