package identity

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxDecodedBytes bounds the memory of a decoded request: a message of 4 MiB can have a million values,
	// of 100 bytes each.
	maxDecodedBytes = 8 << 20
	// maxLevels is the recursion limit of package proto.
	maxLevels = 10_000

	messageBytes = 64  // of a small message
	fieldBytes   = 16  // of a string header, a pointer, an element of a list
	mapBytes     = 256 // of a map with places for eight entries
	entryBytes   = 64  // of a further entry
)

// DecodedBytes estimates the memory of a message, before it is decoded. It reads each byte once.
func DecodedBytes(of protoreflect.MessageDescriptor, raw []byte) (int64, error) {
	return decodedLevel(of, raw, maxLevels)
}

func decodedLevel(of protoreflect.MessageDescriptor, raw []byte, levels int) (bytes int64, err error) {
	if levels == 0 {
		return 0, errors.New("more than 10000 levels")
	}
	fields := of.Fields()
	var entriesOf protowire.Number // the map whose entries came last, and their number
	var entries int
	for bytes = messageBytes; len(raw) > 0; {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return 0, protowire.ParseError(n)
		}
		value := raw[:n]
		raw = raw[n:]
		bytes += fieldBytes
		if kind != protowire.BytesType {
			continue
		}
		value, _ = protowire.ConsumeBytes(value)
		field := fields.ByNumber(number)
		if field == nil || field.Message() == nil {
			bytes += int64(len(value))
			continue
		}
		if field.IsMap() {
			if entriesOf != number {
				entriesOf, entries = number, 0
			}
			switch entries++; {
			case entries == 1:
				bytes += mapBytes
			case entries > 8:
				bytes += entryBytes
			}
			bytes -= fieldBytes + messageBytes // its key and its value are in the map
		}
		below, err := decodedLevel(field.Message(), value, levels-1)
		if err != nil {
			return 0, err
		}
		bytes += below
	}
	return bytes, nil
}

// AnswerCodec is the codec of a client that decodes no answer which takes more memory than Most:
// grpc.ForceCodecV2. It is of one call.
type AnswerCodec struct {
	encoding.CodecV2
	Most int64
	// TooLarge is set by an answer that would take more.
	TooLarge bool
}

// NewAnswerCodec returns an AnswerCodec.
func NewAnswerCodec(most int64) *AnswerCodec {
	return &AnswerCodec{CodecV2: encoding.GetCodecV2("proto"), Most: most}
}

// Unmarshal implements encoding.CodecV2.
func (c *AnswerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	// else it takes less in any case
	if m, ok := v.(proto.Message); ok && int64(data.Len())*(messageBytes+fieldBytes) > c.Most {
		raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer raw.Free()
		bytes, err := DecodedBytes(m.ProtoReflect().Descriptor(), raw.ReadOnlyData())
		if err == nil && bytes > c.Most {
			c.TooLarge = true
			err = fmt.Errorf("the answer would take %d MiB of memory, at most %d are allowed", bytes>>20, c.Most>>20)
		}
		if err != nil {
			return err
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}
