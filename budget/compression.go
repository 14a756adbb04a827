package budget

import (
	"errors"
	"io"

	"google.golang.org/grpc"
)

// refuser stands where a server's decompressor would.
type refuser struct{}

var errCompressed = errors.New("compressed messages are not taken")

func (refuser) Do(io.Reader) ([]byte, error) { return nil, errCompressed }
func (refuser) Type() string                 { return "gzip" }

// NoCompression makes a server refuse compressed messages unread. The algorithms
// that replicas use among each other are known to the whole process, and the only
// option of one server that comes before them is this one.
func NoCompression() grpc.ServerOption {
	return grpc.RPCDecompressor(refuser{}) //nolint:staticcheck // nothing else does it
}
