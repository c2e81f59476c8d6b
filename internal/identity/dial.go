package identity

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const (
	// MaxMessageBytes bounds an answer.
	MaxMessageBytes = 16 << 20
	// maxHeaderBytes bounds the headers of an answer, and its error with its details.
	maxHeaderBytes = 64 << 10
	// MaxRequestBytes bounds a request.
	MaxRequestBytes = 4 << 20
)

// DialOptions are the options of every connection to a server of this project: TLS with the certificate of
// the process, which accepts no server but the expected one; half-open connections are noticed within 25
// seconds, lost ones are established again with pauses of at most two seconds.
func (c *Credentials) DialOptions(expected Identity) []grpc.DialOption {
	return dialOptions(c.Client(expected))
}

// DialOptionsForTokens are DialOptions without a certificate.
func (c *Credentials) DialOptionsForTokens(expected Identity) []grpc.DialOption {
	return dialOptions(c.ClientForTokens(expected))
}

func dialOptions(with credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(with),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes)),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 2 * time.Second,
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 2 * time.Second,
			},
		}),
	}
}
