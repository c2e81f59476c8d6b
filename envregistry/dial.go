package envregistry

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Dial connects to one of several registry servers over one database: host:port, separated by commas. When
// the connection is lost, or its server is silent, the next one is tried.
func Dial(addresses string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	servers, err := parse(addresses)
	if err != nil {
		return nil, err
	}
	static := manual.NewBuilderWithScheme("registry")
	static.InitialState(resolver.State{Addresses: servers})
	return grpc.NewClient("registry:///environment", append(options, grpc.WithResolvers(static))...)
}

// CheckAddresses returns an error unless Dial takes the addresses.
func CheckAddresses(addresses string) error {
	_, err := parse(addresses)
	return err
}

func parse(addresses string) ([]resolver.Address, error) {
	var servers []resolver.Address
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("registry %q: want host:port, or several, separated by commas", address)
		}
		servers = append(servers, resolver.Address{Addr: address})
	}
	return servers, nil
}
