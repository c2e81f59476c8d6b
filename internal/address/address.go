// Package address has the addresses of deployments: host:port, and nothing else; and the networks that
// clients come from.
package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// hostName is a name of DNS, or of a network that is as lenient as container networks are.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)

// Check returns an error unless an address is host:port. gRPC would take other texts for URLs, whose schemes
// lead to files and to other resolvers.
func Check(address string) error {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return fmt.Errorf("address %q: want host:port", address)
	}
	host, port := address[:i], address[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
		return fmt.Errorf("address %q: want a port from 1 to 65535", address)
	}
	if ip, bracketed := strings.CutPrefix(host, "["); bracketed {
		parsed, err := netip.ParseAddr(strings.TrimSuffix(ip, "]"))
		if err != nil || !parsed.Is6() || !strings.HasSuffix(ip, "]") {
			return fmt.Errorf("address %q: want an IPv6 address in the brackets", address)
		}
		return nil
	}
	if !hostName.MatchString(host) {
		return fmt.Errorf("address %q: want a host name or an IP address before the port", address)
	}
	return nil
}

// Target returns the address of a deployment in the form of gRPC's targets, in which nothing in it is taken
// for a scheme.
func Target(d schema.Deployment) (string, error) {
	if d.Address == "" {
		return "", errors.New("deployment " + d.String() + " has not registered yet")
	}
	return "dns:///" + d.Address, Check(d.Address)
}

// networkBits are the bits of an IPv6 address that one customer of a provider does not choose: the others are
// of one machine, or one home.
const networkBits = 64

// Network returns the network by which a connection without a certificate is counted: its IPv4 address, or
// the network of its IPv6 address, since one machine has any number of addresses in it. It is the zero
// address for a connection without one.
func Network(of net.Addr) netip.Addr {
	at, _ := netip.ParseAddrPort(of.String())
	ip := at.Addr().Unmap().WithZone("")
	if !ip.Is6() {
		return ip
	}
	network, _ := ip.Prefix(networkBits) // an error: more bits than there are
	return network.Addr()
}
