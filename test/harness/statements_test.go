package harness

import (
	endian "encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// The statements are the same however the bytes arrive.
func TestStatementsOfAStream(t *testing.T) {
	t.Parallel()
	message := func(kind byte, text string) []byte {
		return append(append([]byte{kind}, endian.BigEndian.AppendUint32(nil, uint32(len(text)+4))...), text...)
	}
	startup := func(code uint32, text string) []byte {
		return append(endian.BigEndian.AppendUint32(endian.BigEndian.AppendUint32(nil, uint32(len(text)+8)), code),
			text...)
	}
	var stream []byte
	var want []int
	for _, m := range [][]byte{
		startup(sslRequest, ""), startup(196608, "user\x00BQ\x00"), message('p', "Q"), message('Q', "BEGIN\x00"),
		message('P', "SELECT B\x00"),
		message('B', "x"), message('E', "QQQQQQ"), message('B', ""), message('S', ""), message('X', ""),
	} {
		if len(m) > 0 && (m[0] == 'B' || m[0] == 'Q') {
			want = append(want, len(stream))
		}
		stream = append(stream, m...)
	}
	require.Len(t, want, 3)
	for size := 1; size <= len(stream); size++ {
		var s statements
		var got []int
		for from := 0; from < len(stream); from += size {
			for _, at := range s.begins(stream[from:min(from+size, len(stream))]) {
				got = append(got, from+at)
			}
		}
		require.Equal(t, want, got, "in pieces of %d", size)
	}
	var s statements
	require.Empty(t, s.begins([]byte("PRI * HTTP/2.0\r\n\r\nQQQQQQQQQQQQQQ")), "another protocol")
}
