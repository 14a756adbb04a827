package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Endpoint is an address to listen on, in the form that net.Listen takes.
type Endpoint struct {
	Network string // tcp or unix
	Address string // host:port, or the path of a socket
}

// String returns the address as a file would have it.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "unix://" + e.Address
	}
	return e.Address
}

const acceptedEndpoint = "IP:PORT, [IPv6]:PORT, HOST:PORT or unix:///PATH, with or without http:// or https:// in front"

// parseEndpoint reads an endpoint. The scheme, http or https, says nothing
// about transport security, which tls.insecure decides.
func parseEndpoint(text string) (Endpoint, bool) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		return Endpoint{Network: "unix", Address: path}, strings.HasPrefix(path, "/")
	}
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(text, scheme); ok {
			text = strings.TrimSuffix(rest, "/")
			break
		}
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || !validHost(host) || !validPort(port) {
		return Endpoint{}, false
	}
	return Endpoint{Network: "tcp", Address: net.JoinHostPort(host, port)}, true
}

func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && strings.Trim(host, "0123456789.") != "" && // no malformed IPv4 address
		!strings.ContainsFunc(host, func(r rune) bool {
			return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		})
}

func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// identity is equal for endpoints of one meaning. It is false where two
// listeners may say the same: with port 0 each gets a port of its own.
func (e Endpoint) identity() (string, bool) {
	if e.Network == "unix" {
		return e.String(), true
	}
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil {
		return "", false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", false
	}
	if address, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(address.Unmap(), uint16(number)).String(), true
	}
	return net.JoinHostPort(strings.ToLower(host), strconv.FormatUint(number, 10)), true
}
