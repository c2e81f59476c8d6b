package identity

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// The frames are found however the bytes arrive, and only many small ones of one request are refused.
func TestSmallFramesAreCounted(t *testing.T) {
	t.Parallel()
	sent := func(write func(*http2.Framer)) error {
		var b bytes.Buffer
		b.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&b, nil)
		require.NoError(t, framer.WriteSettings())
		write(framer)
		whole, pieces := newFrames(), newFrames()
		err := whole.saw(b.Bytes())
		for piece := 7; b.Len() > 0; piece = piece%23 + 1 {
			if perr := pieces.saw(b.Next(piece)); perr != nil {
				require.Equal(t, err, perr)
				return err
			}
		}
		require.NoError(t, err)
		return nil
	}
	data := func(framer *http2.Framer, stream uint32, end bool, size, times int) {
		for range times {
			require.NoError(t, framer.WriteData(stream, end, make([]byte, size)))
		}
	}
	require.NoError(t, sent(func(f *http2.Framer) { data(f, 1, false, 1, maxSmallFrames) }))
	require.ErrorIs(t, sent(func(f *http2.Framer) { data(f, 1, false, 1, maxSmallFrames+1) }), errSmallFrames)
	require.ErrorIs(t, sent(func(f *http2.Framer) { data(f, 1, false, 0, maxSmallFrames+1) }), errSmallFrames)
	require.NoError(t, sent(func(f *http2.Framer) { data(f, 1, false, smallFrame, 3*maxSmallFrames) }))
	// ordinary requests that the server ends, and those that end themselves
	require.NoError(t, sent(func(f *http2.Framer) {
		for i := range uint32(20_000) {
			data(f, 2*i+1, false, 5, 2)
			data(f, 2*i+3, false, 5, 1)
			data(f, 2*i+3, true, 5, 1)
		}
	}))
	require.ErrorIs(t, sent(func(f *http2.Framer) { // many requests do not hide those with many frames
		for i := range uint32(20_000) {
			data(f, 2*i+1, false, 5, fewFrames+1)
		}
	}), errSmallFrames)
	require.NoError(t, sent(func(f *http2.Framer) {
		for range 10 {
			data(f, 1, false, 1, maxSmallFrames)
			require.NoError(t, f.WriteRSTStream(1, http2.ErrCodeCancel))
		}
	}))
}
