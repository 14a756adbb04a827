package peer

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// Protocol is the version of the hello and of what follows it. Replicas with
// another one are refused.
const Protocol = 1

// maxFrameBytes bounds a hello.
const maxFrameBytes = 16 << 10

// magic begins every hello, so that a stranger is told from a replica by its
// first bytes.
var magic = [4]byte{'s', 'c', 'p', '1'}

func writeFrame(w io.Writer, message proto.Message) error {
	body, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	frame := append([]byte(nil), magic[:]...)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

func readFrame(r io.Reader, message proto.Message) error {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	if [4]byte(head[:4]) != magic {
		return &strangerError{head: head}
	}
	size := binary.BigEndian.Uint32(head[4:])
	if size > maxFrameBytes {
		return fmt.Errorf("a hello of %d bytes, at most %d are accepted", size, maxFrameBytes)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := proto.Unmarshal(body, message); err != nil {
		return fmt.Errorf("damaged hello: %w", err)
	}
	return nil
}
