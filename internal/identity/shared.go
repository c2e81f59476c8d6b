package identity

import (
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Shared is a message that several streams send: it is encoded once for all of them, when the first one sends
// it. It must not change.
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

// With returns the message of a stream: the message and fields of its own, which are in a message of the same
// type; none when own is nil. Whole is both, for a stream that encodes nothing.
func (s *Shared[M]) With(own proto.Message, whole M) any {
	return &joined{own: own, whole: whole, encoded: s.encoded}
}

// Batch is several messages as the values of a repeated field of one message. Each is encoded once for all
// streams.
type Batch struct{ raw []byte }

// NewBatch returns a batch of the first messages, and their number: as many as fit into most bytes. It
// returns 1 and no batch when the second one does not fit: then the first goes by itself. field is the number
// of the repeated field, whose messages have the same encoding.
func NewBatch[M proto.Message](of []*Shared[M], field protowire.Number, most int) (b Batch, n int, err error) {
	size := 0
	for ; n < len(of); n++ {
		raw, err := of[n].encoded()
		if err != nil {
			return b, 0, err
		}
		more := protowire.SizeTag(field) + protowire.SizeBytes(len(raw))
		if n > 0 && size+more > most {
			break
		}
		size += more
	}
	if n <= 1 {
		return b, n, nil // not copied for each stream
	}
	b.raw = make([]byte, 0, max(size, leastPooled))
	for _, s := range of[:n] {
		b.raw = protowire.AppendBytes(protowire.AppendTag(b.raw, field, protowire.BytesType), s.raw)
	}
	return b, n, nil
}

// With returns the message of a stream: the batch and fields of its own, which are in a message of the type
// of the whole; none when own is nil.
func (b Batch) With(own proto.Message) any {
	return &joined{own: own, encoded: func() ([]byte, error) { return b.raw, nil }}
}

// joined is a message in two parts: the encodings of two messages, one behind the other, are the encoding of
// both merged.
type joined struct {
	own, whole proto.Message // whole is nil for a batch, which only streams that encode send
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
