package serve

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/test/wait"
)

// dialFrom connects from an address of this machine.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	conn, err := d.DialContext(t.Context(), "tcp", to)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// closedByTheOther reports whether a connection ends within a second.
func closedByTheOther(t *testing.T, conn net.Conn) bool {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
	_, err := conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// One address opens more connections than the listener takes of all, and sends nothing. Others are served;
// the address has its part.
func TestOneAddressLeavesPlacesForOthers_I20(t *testing.T) {
	t.Parallel()
	const all, most = 20, 8
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := newByAddress(netutil.LimitListener(l, all), most)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "served")
		}),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	var hostile []net.Conn
	for range 2 * all {
		hostile = append(hostile, dialFrom(t, "127.0.0.2", l.Addr().String()))
	}
	client := func(from string) *http.Client {
		return &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext,
				DisableKeepAlives: true,
			},
		}
	}
	answer, err := client("127.0.0.3").Get("http://" + l.Addr().String())
	require.NoError(t, err)
	raw, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "served", string(raw))
	closed := 0
	for _, conn := range hostile[most:] {
		if closedByTheOther(t, conn) {
			closed++
		}
	}
	require.Len(t, hostile[most:], closed, "those above the bound are closed")
	for _, conn := range hostile {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool {
		listener.mu.Lock()
		defer listener.mu.Unlock()
		return len(listener.open) == 0
	}, wait.Limit, time.Millisecond, "a closed connection frees its place")
	again, err := client("127.0.0.2").Get("http://" + l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, again.Body.Close())
}

// One address opens connections to the gRPC listener and proves nothing, as many as the listener takes of
// all. Those that prove an identity leave the place.
func TestConnectionsWithoutAnIdentityLeavePlacesForOthers_I20(t *testing.T) {
	t.Parallel()
	const all, most = 20, 8
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := newByAddress(netutil.LimitListener(l, all), most)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	accepted := make(chan net.Conn, 4*all)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	for range 2 * all {
		dialFrom(t, "127.0.0.2", l.Addr().String())
	}
	dialFrom(t, "127.0.0.3", l.Addr().String())
	for range most {
		require.Contains(t, (<-accepted).RemoteAddr().String(), "127.0.0.2:")
	}
	other := <-accepted
	require.Contains(t, other.RemoteAddr().String(), "127.0.0.3:", "others are accepted")
	proved := other.(identity.Unproven)
	proved.Proved()
	proved.Proved()
	listener.mu.Lock()
	defer listener.mu.Unlock()
	require.Len(t, listener.open, 1, "who has proved an identity counts no more")
}

// Health is served while one address holds connections, whose number is bounded: each takes memory and a file
// of the process.
func TestHealthIsServedBesideAnAddressThatHoldsConnections_I20(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	require.NoError(t, l.Close())
	ended := make(chan error, 1)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: healthHandler("livez", &checkup{})}
	go func() { ended <- listenHTTP(t.Context(), "http", at, server, zap.NewNop()) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", at)
		return err == nil && conn.Close() == nil
	}, wait.Limit, 10*time.Millisecond)
	var last net.Conn
	for range maxOfAddress + 20 {
		last = dialFrom(t, "127.0.0.2", at)
	}
	require.True(t, closedByTheOther(t, last))
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + at)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
}
