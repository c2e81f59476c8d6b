package identity

import (
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Shared is a message that several streams send: it is encoded once for all of them, when the first one sends it. Nobody changes it.
type Shared[M proto.Message] struct {
	Message M

	once sync.Once
	raw  []byte // set once; with a capacity of at least leastPooled
	err  error
}

// encode is replaced by tests, which count.
var encode = func(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, max(proto.Size(m), leastPooled)), m)
}

// NewShared returns a message that is not encoded yet.
func NewShared[M proto.Message](m M) *Shared[M] { return &Shared[M]{Message: m} }

func (s *Shared[M]) encoded() ([]byte, error) {
	s.once.Do(func() { s.raw, s.err = encode(s.Message) })
	return s.raw, s.err
}

// With returns the message of a stream: the message and fields of its own, which are in a message of the same type; none when own is nil. Whole
// is both, for a stream that encodes nothing.
func (s *Shared[M]) With(own proto.Message, whole M) any {
	return &joined{own: own, whole: whole, encoded: s.encoded}
}

// joined is a message in two parts: the encodings of two messages, one behind the other, are that of both merged.
type joined struct {
	own, whole proto.Message
	encoded    func() ([]byte, error)
}

// Whole is for streams that pass messages without encoding them.
func (j *joined) Whole() proto.Message { return j.whole }

func (j *joined) size() (int, error) {
	raw, err := j.encoded()
	if err != nil || j.own == nil {
		return len(raw), err
	}
	return len(raw) + proto.Size(j.own), nil
}

// marshal returns the encoded parts. The last buffer is the shared one; ended is called at its end.
func (j *joined) marshal(ended mem.BufferPool) (out mem.BufferSlice, err error) {
	raw, err := j.encoded()
	if err != nil {
		return nil, err
	}
	if j.own != nil {
		own, err := proto.Marshal(j.own)
		if err != nil {
			return nil, err
		}
		out = append(out, mem.SliceBuffer(own))
	}
	return append(out, mem.NewBuffer(&raw, ended)), nil
}
