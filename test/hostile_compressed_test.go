package test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// pressed is a compressor whose messages were compressed before: their sender spends nothing on them.
type pressed struct{ message func() []byte }

func init() {
	encoding.RegisterCompressor(pressed{sync.OnceValue(func() []byte {
		request := protowire.AppendTag(nil, 2, protowire.BytesType) // request_id
		request = protowire.AppendBytes(request, make([]byte, maxRequest))
		var out bytes.Buffer
		w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
		_, _ = w.Write(request)
		_ = w.Close()
		return out.Bytes()
	})})
}

func (pressed) Name() string { return "gzip" }

func (pressed) Decompress(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }

func (p pressed) Compress(w io.Writer) (io.WriteCloser, error) { return pressing{w, p.message()}, nil }

type pressing struct {
	w       io.Writer
	message []byte
}

func (p pressing) Write(b []byte) (int, error) { return len(b), nil }

func (p pressing) Close() error {
	_, err := p.w.Write(p.message)
	return err
}

// refusesCompressed requires that a compressed request is refused, and that the error names compression.
func (f *fixture) refusesCompressed(conn *grpc.ClientConn) {
	f.t.Helper()
	var answer []byte
	err := conn.Invoke(f.t.Context(), resourcev1.ResourceService_PutResource_FullMethodName, []byte("anything"),
		&answer, grpc.UseCompressor("gzip"), grpc.ForceCodec(rawCodec{}))
	require.ErrorContains(f.t, err, "compressed requests are not accepted")
}

// compressed sends requests of 4 KB without an end, each of which is 4 MiB when it is decompressed.
func compressed(ctx context.Context, conns []*grpc.ClientConn) {
	for i := range 150 {
		go func() {
			for ctx.Err() == nil {
				var answer []byte
				_ = conns[i%len(conns)].Invoke(ctx, resourcev1.ResourceService_PutResource_FullMethodName,
					[]byte("anything"), &answer, grpc.UseCompressor("gzip"), grpc.ForceCodec(rawCodec{}))
				<-time.After(20 * time.Millisecond) // a call that is refused at once takes processor time only
			}
		}()
	}
}
