package harness

import endian "encoding/binary"

// Codes of messages that come before the first startup message (PostgreSQL, Message Formats).
const (
	sslRequest    = 80877103
	gssEncRequest = 80877104
)

// statements finds the statements in the bytes that a client sends to PostgreSQL, without TLS. Any other
// stream has none.
type statements struct {
	started bool
	broken  bool
	left    int    // bytes of the present message that are still to come
	head    []byte // of a message whose length is not complete
}

// begins returns the places in the next bytes at which a statement begins: Bind, or Query of the simple
// protocol.
func (s *statements) begins(b []byte) (at []int) {
	for i := 0; i < len(b) && !s.broken; {
		if s.left > 0 {
			n := min(s.left, len(b)-i)
			s.left, i = s.left-n, i+n
			continue
		}
		head := 8 // the length and the code of a startup message
		if s.started {
			head = 5 // the type and the length
			if len(s.head) == 0 && (b[i] == 'B' || b[i] == 'Q') {
				at = append(at, i)
			}
		}
		n := min(head-len(s.head), len(b)-i)
		s.head, i = append(s.head, b[i:i+n]...), i+n
		if len(s.head) == head {
			s.message()
		}
	}
	return at
}

// message takes a complete head.
func (s *statements) message() {
	if s.started {
		s.left = int(endian.BigEndian.Uint32(s.head[1:])) - 4
	} else {
		code := endian.BigEndian.Uint32(s.head[4:])
		s.left = int(endian.BigEndian.Uint32(s.head)) - 8
		s.started = code != sslRequest && code != gssEncRequest
	}
	s.broken, s.head = s.left < 0 || s.left > 1<<30, s.head[:0]
}
