package envregistry

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Dial connects to one of several registry servers over one database: host:port, separated by commas. When the connection
// is lost, or its server is silent, the next one is tried.
func Dial(addresses string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	var state resolver.State
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("registry %q: want host:port, or several, separated by commas", address)
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	if len(state.Addresses) == 0 {
		return nil, errors.New("no address of a registry")
	}
	static := manual.NewBuilderWithScheme("registry")
	static.InitialState(state)
	return grpc.NewClient("registry:///environment", append(options, grpc.WithResolvers(static))...)
}
