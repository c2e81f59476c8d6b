package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/console"
	"github.com/db-controller/db-controller/internal/gateway"
	"github.com/db-controller/db-controller/internal/identity"
)

const (
	// gatewayConnections is the number of connections over which the callers of the gateway are spread.
	gatewayConnections = 16
	// maxGatewayConnections bounds the connections of callers, who are known only by the tokens of their
	// requests.
	maxGatewayConnections = 1000
)

func (c *deploymentConfig) checkHTTPAPI() error {
	if !c.api.console && (c.api.actions || c.api.all) {
		return errors.New("--console-actions and --console-all change the console: give --console")
	}
	if c.api.listen == "" && c.api.console {
		return errors.New("--console: it is served with the API: give --http-api")
	}
	if c.api.listen == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(c.api.listen); err != nil || port == "" {
		return fmt.Errorf("--http-api %s: want host:port, or :port for every address of this machine", c.api.listen)
	}
	if c.server.tokens == "" {
		return fmt.Errorf("--http-api %s: its callers prove who they are by tokens: give --tokens", c.api.listen)
	}
	return nil
}

// serveGateway serves the API as HTTPS and JSON until ctx ends.
func (d *deployment) serveGateway(ctx context.Context) error {
	if d.cfg.api.listen == "" {
		return nil
	}
	conns := make([]grpc.ClientConnInterface, gatewayConnections)
	// Windows of a fixed size: growing windows keep up to 16 MB of a watch that its caller does not read.
	options := append(d.credentials.DialOptionsForTokens(identity.Deployment(d.cfg.id)),
		grpc.WithStaticStreamWindowSize(identity.WindowBytes), grpc.WithStaticConnWindowSize(16*identity.WindowBytes))
	for i := range conns {
		conn, err := grpc.NewClient(ownAddress(d.endpoints.listener.Addr()), options...)
		if err != nil {
			return fmt.Errorf("--http-api: %w", err)
		}
		defer func() { _ = conn.Close() }()
		conns[i] = conn
	}
	handler, err := gateway.New(ctx, conns, d.verified, d.cfg.server.memory<<20)
	if err != nil {
		return fmt.Errorf("--http-api: %w", err)
	}
	var routes http.Handler = handler
	if d.cfg.api.console {
		others := newTokenConns(d.credentials)
		defer others.close()
		routes = besideConsole(handler, d.consoleSessions(handler, conns, others))
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.cfg.api.listen)
	if err != nil {
		return fmt.Errorf("--http-api: %w", err)
	}
	server := &http.Server{
		Handler: routes, TLSConfig: d.credentials.ServerTLS(), ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog:    zap.NewStdLog(d.log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
		BaseContext: func(net.Listener) context.Context { return ctx }, // watches end with the process
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	d.log.Info("serving the API as HTTPS and JSON", zap.Stringer("http_api", listener.Addr()))
	err = server.Serve(tls.NewListener(newByAddress(netutil.LimitListener(listener, maxGatewayConnections),
		maxOfAddress), server.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// besideConsole serves the API and the console. (A ServeMux would redirect names with double slashes.)
func besideConsole(api, page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, console.SessionsPath) {
			page.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// ownAddress is where this process reaches its own listener.
func ownAddress(of net.Addr) string {
	if at, ok := of.(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", fmt.Sprint(at.Port))
	}
	return of.String()
}

// verified returns the identity of a token.
func (d *deployment) verified(ctx context.Context, token string) (string, error) {
	who, err := d.endpoints.tokens.Verify(ctx, token)
	if err != nil {
		return "", status.Error(codes.Unauthenticated, err.Error())
	}
	return who.Identity.String(), nil
}
