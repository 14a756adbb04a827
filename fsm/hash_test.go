package fsm

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fields returns a struct's fields so that they can be set, also the unexported ones
// of our own types. Of a generated message only those of the schema count.
func fields(v reflect.Value) (names []string, values []reflect.Value) {
	_, generated := v.Addr().Interface().(proto.Message)
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if generated && !field.IsExported() {
			continue
		}
		value := v.Field(i)
		if !field.IsExported() {
			value = reflect.NewAt(field.Type, unsafe.Pointer(value.UnsafeAddr())).Elem()
		}
		names, values = append(names, field.Name), append(values, value)
	}
	return names, values
}

var timeType = reflect.TypeFor[time.Time]()

// fill sets everything below v to something that is not its zero value.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(time.Unix(1000, 7).UTC()))
	case v.Kind() == reflect.Struct:
		_, values := fields(v)
		for _, value := range values {
			fill(t, value)
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(3)
	case v.CanUint():
		v.SetUint(3)
	default:
		t.Fatalf("cannot fill a %s", v.Type())
	}
}

func filled[T any](t *testing.T) T {
	t.Helper()
	var record T
	fill(t, reflect.ValueOf(&record).Elem())
	return record
}

// change alters the n-th thing below v that can be altered, counted down in n, and
// says which it was; false if there are fewer.
func change(v reflect.Value, path string, n *int) (string, bool) {
	mine := func() bool { *n--; return *n < 0 }
	switch {
	case v.Type() == timeType:
		if mine() {
			v.Set(reflect.ValueOf(v.Interface().(time.Time).Add(1)))
			return path, true
		}
	case v.Kind() == reflect.Struct:
		names, values := fields(v)
		for i, value := range values {
			if changed, ok := change(value, path+"."+names[i], n); ok {
				return changed, true
			}
		}
	case v.Kind() == reflect.Pointer:
		if mine() {
			v.SetZero()
			return path + " is absent", true
		}
		return change(v.Elem(), path, n)
	case v.Kind() == reflect.Slice:
		if mine() {
			v.SetZero()
			return path + " is empty", true
		}
		return changeElements(v, path, n)
	case v.Kind() == reflect.Array:
		return changeElements(v, path, n)
	case v.Kind() == reflect.String:
		if mine() {
			v.SetString(v.String() + "y")
			return path, true
		}
	case v.Kind() == reflect.Bool:
		if mine() {
			v.SetBool(!v.Bool())
			return path, true
		}
	case v.CanInt():
		if mine() {
			v.SetInt(v.Int() + 1)
			return path, true
		}
	case v.CanUint():
		if mine() {
			v.SetUint(v.Uint() + 1)
			return path, true
		}
	}
	return "", false
}

func changeElements(v reflect.Value, path string, n *int) (string, bool) {
	for i := range v.Len() {
		element := v.Index(i)
		if element.Kind() == reflect.Pointer {
			element = element.Elem() // a list has no absent elements
		}
		if changed, ok := change(element, fmt.Sprintf("%s[%d]", path, i), n); ok {
			return changed, true
		}
	}
	return "", false
}

// worded are the fields that hold texts which Apply words: replicas of two releases may
// have other ones for the same log, and must have the same hash.
var worded = map[string]bool{"links.StatusMessage": true, "requests.errorText": true, "rendered.Error": true}

// expectHashed changes one field after the other of a record and expects another
// hash of the state that build makes with it.
func expectHashed[T any](t *testing.T, what string, build func(T) tables) {
	t.Helper()
	base := (&Snapshot{tables: build(filled[T](t))}).Hash()
	seen := map[[32]byte]string{base: "nothing"}
	for n := 0; ; n++ {
		record, left := filled[T](t), n
		v := reflect.ValueOf(&record).Elem()
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		changed, ok := change(v, what, &left)
		if !ok {
			if n == 0 {
				t.Errorf("%s has nothing to change", what)
			}
			return
		}
		hash := (&Snapshot{tables: build(record)}).Hash()
		if worded[changed] {
			if hash != base {
				t.Errorf("%s is a text that a release may word otherwise, and is in the hash", changed)
			}
			continue
		}
		if same, known := seen[hash]; known {
			t.Errorf("%s: the hash is as if %s had changed", changed, same)
		}
		seen[hash] = changed
	}
}

func expectTableHashed[T any](t *testing.T, what string, pick func(*tables) table[T]) {
	t.Helper()
	expectHashed(t, what, func(record T) tables {
		state := newTables()
		state.meta.ActiveSchema = SchemaVersion // what an older schema does not know is not in its hash
		pick(&state).set(record)
		return state
	})
}

// TestEveryFieldIsHashed fails when a record gains a field that the hash, and so the
// comparison of replicas, does not see.
func TestEveryFieldIsHashed(t *testing.T) {
	hashed := map[string]func(){
		"meta": func() {
			expectHashed(t, "meta", func(values meta) tables { state := newTables(); state.meta = values; return state })
		},
		"fleet": func() {
			expectHashed(t, "fleet", func(config *slimcppb.FleetConfig) tables {
				state := newTables()
				state.fleet = config
				return state
			})
		},
		"rendered": func() {
			expectHashed(t, "rendered", func(rendered *slimcppb.RenderedSegments) tables {
				state := newTables()
				state.fleet = &slimcppb.FleetConfig{Topology: &slimcppb.Topology{SegmentsTemplate: "x"}}
				state.rendered = rendered
				return state
			})
		},
		"nodes":      func() { expectTableHashed(t, "nodes", func(s *tables) table[*Node] { return s.nodes }) },
		"links":      func() { expectTableHashed(t, "links", func(s *tables) table[*Link] { return s.links }) },
		"names":      func() { expectTableHashed(t, "names", func(s *tables) table[*NameRecord] { return s.names }) },
		"tombstones": func() { expectTableHashed(t, "tombstones", func(s *tables) table[*Tombstone] { return s.tombstones }) },
		"ended":      func() { expectTableHashed(t, "ended", func(s *tables) table[endedSession] { return s.ended }) },
		"segments":   func() { expectTableHashed(t, "segments", func(s *tables) table[*Segment] { return s.segments }) },
		"secrets":    func() { expectTableHashed(t, "secrets", func(s *tables) table[*Secret] { return s.secrets }) },
		"tokens":     func() { expectTableHashed(t, "tokens", func(s *tables) table[usedToken] { return s.tokens }) },
		"replicas":   func() { expectTableHashed(t, "replicas", func(s *tables) table[*Replica] { return s.replicas }) },
		"unlinked":   func() { expectTableHashed(t, "unlinked", func(s *tables) table[UnlinkedGroup] { return s.unlinked }) },
		"requestOrder": func() {
			expectHashed(t, "requests", func(record *request) tables {
				state := newTables()
				state.requestOrder.set(record.byAge())
				return state
			})
		},
	}
	// These follow from the others.
	derived := strings.Fields(`graph groups endedOrder tokenExpires requests
		sessions members connected pairs former groupLinks linksOfNode namesOfNode blocked`)
	for i := range reflect.TypeFor[tables]().NumField() {
		name := reflect.TypeFor[tables]().Field(i).Name
		check, ok := hashed[name]
		switch {
		case ok:
			check()
		case !strings.Contains(" "+strings.Join(derived, " ")+" ", " "+name+" "):
			t.Errorf("%s is not in the hash, and nothing says that it follows from what is", name)
		}
	}
}

// texts calls with every string below v, and the path that worded names.
func texts(v reflect.Value, path string, visit func(path, text string)) {
	switch {
	case v.Type() == timeType:
	case v.Kind() == reflect.Struct:
		names, values := fields(v)
		for i, value := range values {
			texts(value, path+"."+names[i], visit)
		}
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			texts(v.Elem(), path, visit)
		}
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			texts(v.Index(i), path, visit)
		}
	case v.Kind() == reflect.String:
		visit(path, v.String())
	}
}

// textsOf calls with every string of the records of a table.
func textsOf[T any](what string, records table[T], visit func(path, text string)) {
	for record := range records.all() {
		copied := record
		texts(reflect.ValueOf(&copied).Elem(), what, visit)
	}
}

// TestTheHashCoversNoWordsOfOurs goes over the strings of a state that has every kind
// of record. What is in the hash was in a command, and is the same on every replica
// whatever its release, or it is an identifier.
func TestTheHashCoversNoWordsOfOurs(t *testing.T) {
	h := goldenHistory(t)
	carried := map[string]bool{"": true}
	for _, logged := range h.log {
		for _, command := range logged.Entry.GetCommands() {
			message(command.ProtoReflect(), func(text string) { carried[text] = true })
		}
	}
	identifier := regexp.MustCompile(`^[A-Za-z0-9._~/$*-]+$`)
	covered := 0
	visit := func(path, text string) {
		if worded[path] || carried[text] || path == "tokens.hash" {
			return
		}
		if covered++; !identifier.MatchString(text) {
			t.Errorf("%s is in the hash and says %q, which no command did: leave it out of the hash and name it in worded", path, text)
		}
	}
	s := &h.store.state
	texts(reflect.ValueOf(&s.meta).Elem(), "meta", visit)
	textsOf("nodes", s.nodes, visit)
	textsOf("links", s.links, visit)
	textsOf("names", s.names, visit)
	textsOf("tombstones", s.tombstones, visit)
	textsOf("ended", s.ended, visit)
	textsOf("segments", s.segments, visit)
	textsOf("secrets", s.secrets, visit)
	textsOf("tokens", s.tokens, visit)
	textsOf("replicas", s.replicas, visit)
	textsOf("unlinked", s.unlinked, visit)
	for result := range s.requestOrder.all() {
		texts(reflect.ValueOf(result.request).Elem(), "requests", visit)
	}
	if covered == 0 {
		t.Error("nothing was looked at")
	}
}

// message calls with every text of a message, and of those in it.
func message(m protoreflect.Message, visit func(string)) {
	var value func(protoreflect.Value)
	value = func(v protoreflect.Value) {
		switch v := v.Interface().(type) {
		case string:
			visit(v)
		case []byte:
			visit(string(v))
		case protoreflect.Message:
			message(v, visit)
		case protoreflect.List:
			for i := range v.Len() {
				value(v.Get(i))
			}
		}
	}
	m.Range(func(_ protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		value(v)
		return true
	})
}

// TestEveryFieldIsInTheSnapshot does the same for the records of the file.
func TestEveryFieldIsInTheSnapshot(t *testing.T) {
	node, err := nodeFromProto(func() *slimcppb.NodeRecord {
		record := filled[*Node](t).proto()
		record.NodeId, record.Group, record.Node = "x/y", "x", "y"
		return record
	}())
	if err != nil {
		t.Fatal(err)
	}
	wantNode := filled[*Node](t)
	wantNode.ID, wantNode.Group, wantNode.LocalID = "x/y", "x", "y"
	equal(t, "node", node, wantNode)
	equal(t, "link", linkFromProto(filled[*Link](t).proto()), filled[*Link](t))
	name, err := nameRecordFromProto(filled[*NameRecord](t).proto())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "name", name, filled[*NameRecord](t))
	tombstone, err := tombstoneFromProto(filled[*Tombstone](t).proto())
	if err != nil {
		t.Fatal(err)
	}
	buried := filled[*Tombstone](t)
	buried.Announcer = Announcer{
		NodeID: buried.Announcer.NodeID, Group: buried.Announcer.Group, First: buried.Announcer.First, Epoch: buried.Announcer.Epoch,
	}
	equal(t, "tombstone", tombstone, buried)
	equal(t, "segment", segmentFromProto(filled[*Segment](t).proto()), filled[*Segment](t))
	secret := filled[*Secret](t).proto()
	equal(t, "secret", secretFromProto(secret.GetSecret(), secret.GetIndex()), filled[*Secret](t))
	equal(t, "replica", replicaFromProto(filled[*Replica](t).proto()), filled[*Replica](t))
	equal(t, "request", requestFromProto(filled[*request](t).proto()), filled[*request](t))
}

// TestTheHashFollowsTheLog: replicas that applied the same log have the same hash,
// whether they replayed it or began with a snapshot, and another one at each entry.
func TestTheHashFollowsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		hashes := map[[32]byte]uint64{}
		steps := rapid.IntRange(1, 20).Draw(t, "steps")
		cut := rapid.IntRange(0, steps).Draw(t, "snapshot after")
		restored := New()
		for step := range steps + 1 {
			if step == cut {
				if err := restored.Restore(bytes.NewReader(snapshotBytes(t, f.store))); err != nil {
					t.Fatalf("%v", err)
				}
			}
			f.apply(f.draw(t))
			hash := f.store.Capture().Hash()
			if index, seen := hashes[hash]; seen {
				t.Fatalf("the hash at %d is that at %d", f.view().Index(), index)
			}
			hashes[hash] = f.view().Index()
		}
		replayed := New()
		for _, logged := range f.log {
			if logged.Index > restored.View().Index() {
				restored.ApplyBatch([]Batch{reencode(t, logged)})
			}
			replayed.ApplyBatch([]Batch{reencode(t, logged)})
		}
		want := f.store.Capture().Hash()
		if replayed.Capture().Hash() != want || restored.Capture().Hash() != want {
			t.Fatalf("the hash differs after the same log")
		}
	})
}
