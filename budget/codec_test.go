package budget_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/budget"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

func decode(encoded []byte, message proto.Message) error {
	return budget.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, message)
}

// repeated is a ControlMessage with one field of its payload over and over.
func repeated(payload, field protowire.Number, content []byte, times int) []byte {
	var inner []byte
	for range times {
		inner = protowire.AppendTag(inner, field, protowire.BytesType)
		inner = protowire.AppendBytes(inner, content)
	}
	outer := protowire.AppendTag(nil, payload, protowire.BytesType)
	return protowire.AppendBytes(outer, inner)
}

// nested is a list in a list in a list, as metadata may be.
func nested(depth int) []byte {
	var content []byte
	for range depth {
		value := protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), content) // Value.list_value
		content = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)  // ListValue.values
	}
	return content
}

// TestCodecRefusesManyEmptyEntries: two bytes on the wire become a hundred in memory.
func TestCodecRefusesManyEmptyEntries(t *testing.T) {
	metadata := protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), nil)
	for name, encoded := range map[string][]byte{
		"empty connections":  repeated(8, 4, nil, 1<<20),
		"empty routes":       repeated(2, 2, nil, 1<<20),
		"empty details":      repeated(8, 2, metadata, 1<<20),
		"empty strings":      repeated(3, 3, nil, 1<<20),
		"empty list entries": repeated(5, 2, nil, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := decode(encoded, &controllerpb.ControlMessage{})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), "too many entries") {
				t.Fatalf("it was decoded: %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 4*uint64(len(encoded)) {
				t.Errorf("the refusal of %d bytes took %d", len(encoded), took)
			}
		})
	}
}

func TestCodecRefusesDeepMetadata(t *testing.T) {
	list := &structpb.ListValue{}
	if err := decode(nested(10), list); err != nil {
		t.Errorf("ten levels: %v", err)
	}
	if err := decode(nested(5000), list); err == nil {
		t.Error("5,000 levels were decoded")
	}
}

func name(i int) *dataplanepb.Name {
	return &dataplanepb.Name{
		Name: &dataplanepb.EncodedName{Component_0: 9745323415579563579, Component_1: 17219925055306830033, Component_2: uint64(i),
			NameId: &dataplanepb.NameId{Id_0: 10144345144796770922, Id_1: uint64(i)}},
		StrName: &dataplanepb.StringName{StrComponent_0: "org", StrComponent_1: "ns", StrComponent_2: fmt.Sprint("app-", i)},
	}
}

// TestCodecTakesWhatNodesSend: messages of thousands of entries as nodes write them.
func TestCodecTakesWhatNodesSend(t *testing.T) {
	link := "0190aaaa-bbbb-8ccc-8ddd-eeeeffff0000"
	peer := "node-d6c3317b-0000-4000-8000-000000000000"
	register := &controllerpb.RegisterNodeRequest{NodeId: peer}
	command := &controllerpb.ConfigurationCommand{}
	short := &controllerpb.ConfigurationCommand{}
	list := &controllerpb.RouteListResponse{OriginalMessageId: link}
	acks := &controllerpb.ConfigurationCommandAck{OriginalMessageId: link}
	for i := range 5000 {
		incoming := &controllerpb.ConnectionEntry{
			Id: uint64(i), ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE, ConfigData: "{}",
			LinkId: proto.String(link), Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING, PeerNodeId: proto.String(peer),
		}
		register.Connections = append(register.Connections, incoming)
		command.RoutesToSet = append(command.RoutesToSet, &controllerpb.Route{Name: name(i)})
		bare := name(i)
		bare.Name.NameId, bare.StrName.StrComponent_2 = nil, "a"
		short.RoutesToDelete = append(short.RoutesToDelete, &controllerpb.Route{Name: bare})
		list.Entries = append(list.Entries, &controllerpb.RouteEntry{Name: name(i), Connections: []*controllerpb.ConnectionEntry{incoming}})
		acks.RoutesStatus = append(acks.RoutesStatus, &controllerpb.RouteAck{Route: &controllerpb.Route{Name: name(i), LinkId: proto.String(link)}, Success: true})
	}
	metadata, err := structpb.NewStruct(map[string]any{"region": "eu", "weight": 3, "nested": map[string]any{"k": []any{1, true, "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		register.ConnectionDetails = append(register.ConnectionDetails, &controllerpb.ConnectionDetails{Endpoint: "127.0.0.1:14602", Metadata: metadata})
	}
	for _, message := range []proto.Message{register, command, short, list, acks} {
		encoded, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		size, err := budget.DecodedSize(message, encoded, 1<<40)
		t.Logf("%T: %d bytes, %.1f times in memory", message, len(encoded), float64(size)/float64(len(encoded)))
		if err != nil {
			t.Error(err)
		}
		got := message.ProtoReflect().New().Interface()
		if err := decode(encoded, got); err != nil {
			t.Errorf("%T: %v", message, err)
		} else if !proto.Equal(got, message) {
			t.Errorf("%T is not what was sent", message)
		}
	}
}

// TestDecodedSizeIsAnUpperBound: what is decoded takes no more than was estimated.
func TestDecodedSizeIsAnUpperBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := []byte(rapid.SampledFrom([]string{"", "\x0a\x01a", "\x0a\x03abc\x12\x02{}", "\x32\x00", "\x22\x01a\x32\x01b", "\x0a\x02\x0a\x00"}).Draw(t, "content"))
		encoded := repeated(
			protowire.Number(rapid.SampledFrom([]int{2, 3, 5, 7, 8, 20, 99}).Draw(t, "payload")),
			protowire.Number(rapid.IntRange(1, 7).Draw(t, "field")), content, rapid.IntRange(2000, 5000).Draw(t, "times"))
		message := &controllerpb.ControlMessage{}
		estimate, err := budget.DecodedSize(message, encoded, 1<<40)
		if err != nil {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := proto.Unmarshal(encoded, message); err != nil {
			return
		}
		runtime.ReadMemStats(&after)
		// Slices that grew have left their older arrays to the collector, and the test's
		// own bookkeeping takes some.
		if took := int(after.TotalAlloc - before.TotalAlloc); took > estimate*5/4+128<<10 {
			t.Fatalf("%d bytes took %d, estimated were %d", len(encoded), took, estimate)
		}
	})
}

// FuzzCheck: no bytes may make the judgement panic, and what it takes is what protobuf takes.
func FuzzCheck(f *testing.F) {
	f.Add(repeated(8, 4, nil, 3))
	f.Add(nested(12))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, encoded []byte) {
		_ = budget.Check(&controllerpb.ControlMessage{}, encoded)
		_ = budget.Check(&structpb.Struct{}, encoded)
	})
}
