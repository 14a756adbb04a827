package budget

import (
	"errors"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	// maxDepth bounds nested messages. Only free-form metadata nests without end.
	maxDepth = 100
	// What one occurrence of a field takes beside its content, as the Go runtime
	// allocates; slices that grow are counted twice.
	pointerCost  = 2 * 8
	stringCost   = 2 * 16
	numberCost   = 2 * 8
	mapEntryCost = 160
	oneofCost    = 24
	optionalCost = 16
	// unknownMessage is the size of a message whose Go type is not known.
	unknownMessage = 128
)

var (
	errMalformed = errors.New("malformed message")
	errTooDeep   = errors.New("message is nested too deeply")
)

// shape is what decoding a message costs.
type shape struct {
	size   int // of the Go struct
	fields map[protowire.Number]field
}

type field struct {
	message *shape // nil: a scalar
	wire    protowire.Type
	bytes   bool // string or bytes
	list    bool
	cost    int // of each occurrence, beside content
}

// shapes are those of all messages that were seen. They are as many as message
// types are compiled in.
var shapes sync.Map // of *shape by protoreflect.FullName

// compiling lets one goroutine at a time add shapes.
var compiling sync.Mutex

func shapeOf(descriptor protoreflect.MessageDescriptor) *shape {
	if known, ok := shapes.Load(descriptor.FullName()); ok {
		return known.(*shape)
	}
	compiling.Lock()
	defer compiling.Unlock()
	made := map[protoreflect.FullName]*shape{}
	root := compile(descriptor, made)
	for name, each := range made { // complete only now
		shapes.LoadOrStore(name, each)
	}
	return root
}

// compile makes the shape of a message and of what it holds.
func compile(descriptor protoreflect.MessageDescriptor, made map[protoreflect.FullName]*shape) *shape {
	if known, ok := made[descriptor.FullName()]; ok {
		return known
	}
	s := &shape{size: structSize(descriptor), fields: map[protowire.Number]field{}}
	made[descriptor.FullName()] = s
	fields := descriptor.Fields()
	for i := range fields.Len() {
		s.fields[fields.Get(i).Number()] = compileField(fields.Get(i), made)
	}
	return s
}

func compileField(descriptor protoreflect.FieldDescriptor, made map[protoreflect.FullName]*shape) field {
	f := field{list: descriptor.IsList(), wire: wireType(descriptor.Kind())}
	kind := descriptor.Kind()
	f.bytes = kind == protoreflect.StringKind || kind == protoreflect.BytesKind
	isMessage := kind == protoreflect.MessageKind || kind == protoreflect.GroupKind
	if isMessage {
		f.message = compile(descriptor.Message(), made)
		f.cost = f.message.size
	}
	switch oneof := descriptor.ContainingOneof(); {
	case descriptor.IsMap():
		f.cost += mapEntryCost
	case f.list && isMessage:
		f.cost += pointerCost
	case f.list && f.bytes:
		f.cost += stringCost
	case f.list:
		f.cost += numberCost
	case oneof != nil && !oneof.IsSynthetic():
		f.cost += oneofCost
	case oneof != nil:
		f.cost += optionalCost
	}
	return f
}

func structSize(descriptor protoreflect.MessageDescriptor) int {
	if descriptor.IsMapEntry() {
		return 0 // the map's own
	}
	known, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.FullName())
	if err != nil {
		return unknownMessage
	}
	kind := reflect.TypeOf(known.Zero().Interface())
	if kind.Kind() != reflect.Pointer {
		return unknownMessage
	}
	return (int(kind.Elem().Size()) + 15) &^ 15
}

func wireType(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	default:
		return protowire.VarintType
	}
}

// DecodedSize estimates from above how much memory a message of this type takes
// when it is decoded. It stops counting beyond the limit.
func DecodedSize(message proto.Message, encoded []byte, limit int) (int, error) {
	s := shapeOf(message.ProtoReflect().Descriptor())
	size, err := s.decoded(encoded, limit-s.size, 0)
	return s.size + size, err
}

// decoded returns what the content of a message takes.
func (s *shape) decoded(encoded []byte, limit, depth int) (int, error) {
	if depth > maxDepth {
		return 0, errTooDeep
	}
	total := 0
	for len(encoded) > 0 && total <= limit {
		number, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			return 0, errMalformed
		}
		length := protowire.ConsumeFieldValue(number, kind, encoded[n:])
		if length < 0 {
			return 0, errMalformed
		}
		value := encoded[n : n+length]
		encoded = encoded[n+length:]
		f, known := s.fields[number]
		if !known || kind == protowire.StartGroupType {
			total += 2 * (n + length) // kept as it is
			continue
		}
		cost, err := f.decoded(value, kind, limit-total, depth)
		if err != nil {
			return 0, err
		}
		total += cost
	}
	return total, nil
}

// decoded returns what one occurrence of a field takes.
func (f field) decoded(value []byte, kind protowire.Type, limit, depth int) (int, error) {
	if kind != protowire.BytesType {
		return f.cost, nil
	}
	content, n := protowire.ConsumeBytes(value)
	if n < 0 {
		return 0, errMalformed
	}
	switch {
	case f.message != nil:
		inner, err := f.message.decoded(content, limit-f.cost, depth+1)
		return f.cost + inner, err
	case f.bytes:
		return f.cost + (len(content)+7)&^7, nil
	case f.list: // packed: its elements are counted before they are allocated
		return 8 * packed(content, f.wire), nil
	}
	return 2 * len(value), nil // of a type that is not the field's: kept as it is
}

func packed(content []byte, wire protowire.Type) int {
	switch wire {
	case protowire.Fixed32Type:
		return len(content) / 4
	case protowire.Fixed64Type:
		return len(content) / 8
	}
	count := 0
	for _, b := range content {
		if b < 0x80 {
			count++
		}
	}
	return count
}
