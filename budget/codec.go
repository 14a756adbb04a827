package budget

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

const (
	// maxExpansion is how much memory a decoded message may take for each of its
	// bytes. What nodes send takes less than 5; an empty entry of a list, two bytes,
	// may take a hundred.
	maxExpansion = 8
	// expansionFloor is what any message may take.
	expansionFloor = 64 << 10
)

// codec is gRPC's own, but for messages that grow too much when they are decoded.
type codec struct{ encoding.CodecV2 }

// Codec returns gRPC's codec of protobuf for servers (grpc.ForceServerCodecV2) and
// clients (grpc.ForceCodecV2). It refuses a message that would take more memory
// than 8 times its bytes, before anything is allocated for it.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message := messageOf(v)
	if message == nil || data.Len() <= 8 { // too short for the floor
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if err := Check(message, buffer.ReadOnlyData()); err != nil {
		return err
	}
	return proto.Unmarshal(buffer.ReadOnlyData(), message)
}

func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case protoadapt.MessageV2:
		return v
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	}
	return nil
}

// Check returns an error if a message of this type would take too much memory when
// it is decoded from these bytes. It allocates nothing.
func Check(message proto.Message, encoded []byte) error {
	limit := maxExpansion*len(encoded) + expansionFloor
	size, err := DecodedSize(message, encoded, limit)
	if err != nil {
		return err
	}
	if size > limit {
		return fmt.Errorf("%s of %d bytes has too many entries: it would take more than %d bytes of memory",
			message.ProtoReflect().Descriptor().FullName(), len(encoded), limit)
	}
	return nil
}
