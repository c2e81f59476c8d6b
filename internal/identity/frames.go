package identity

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/http2"
)

const (
	// smallFrame is the size of a frame that takes much more memory than its bytes, which alone the windows
	// of HTTP/2 bound.
	smallFrame = 256
	// maxSmallFrames is the number of small frames of one request; its last frame does not count.
	maxSmallFrames = 1000
	// fewFrames is the number of small frames of an ordinary request. Requests with no more are forgotten
	// when there are more than maxSmallRequests.
	fewFrames        = 8
	maxSmallRequests = 2000
)

var errSmallFrames = errors.New("the requests arrive in too many small frames: send larger ones")

// frames counts the small frames of the requests on a connection.
type frames struct {
	skip  int    // bytes until the next frame
	head  []byte // of the next frame, as far as it has arrived
	small map[uint32]int
}

func newFrames() *frames {
	return &frames{skip: len(http2.ClientPreface), small: map[uint32]int{}}
}

const headBytes = 9

// saw follows the bytes that were read.
func (f *frames) saw(data []byte) error {
	for len(data) > 0 {
		if n := min(f.skip, len(data)); n > 0 {
			f.skip, data = f.skip-n, data[n:]
			continue
		}
		n := min(headBytes-len(f.head), len(data))
		if f.head, data = append(f.head, data[:n]...), data[n:]; len(f.head) < headBytes {
			return nil
		}
		if err := f.frame(); err != nil {
			return err
		}
	}
	return nil
}

func (f *frames) frame() error {
	length := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	kind, flags := http2.FrameType(f.head[3]), http2.Flags(f.head[4])
	stream := binary.BigEndian.Uint32(f.head[5:])
	f.skip, f.head = length, f.head[:0]
	switch {
	case kind == http2.FrameRSTStream, kind == http2.FrameData && flags.Has(http2.FlagDataEndStream):
		delete(f.small, stream)
	case kind == http2.FrameData && length < smallFrame:
		if f.small[stream]++; f.small[stream] > maxSmallFrames {
			return errSmallFrames
		}
		return f.forget()
	}
	return nil
}

// forget forgets requests of which the server may have ended many.
func (f *frames) forget() error {
	if len(f.small) <= maxSmallRequests {
		return nil
	}
	for stream, n := range f.small {
		if n <= fewFrames {
			delete(f.small, stream)
		}
	}
	if len(f.small) > maxSmallRequests/2 {
		return errSmallFrames
	}
	return nil
}
