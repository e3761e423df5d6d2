package rpc

import (
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
)

// order is a message type with the given fields, as a version of a program would
// have it.
func order(t testing.TB, fields ...*descriptorpb.FieldDescriptorProto) protoreflect.MessageDescriptor {
	t.Helper()
	return orderOf(t, &descriptorpb.FileDescriptorProto{Syntax: new("proto3")}, fields...)
}

// orderOf is order in a file of another kind.
func orderOf(t testing.TB, file *descriptorpb.FileDescriptorProto, fields ...*descriptorpb.FieldDescriptorProto) protoreflect.MessageDescriptor {
	t.Helper()
	file = proto.CloneOf(file)
	file.Name, file.Package = new("order.proto"), new("semel.test")
	order := &descriptorpb.DescriptorProto{Name: new("Order"), Field: fields}
	for _, f := range fields {
		if f.OneofIndex != nil && f.GetOneofIndex() == int32(len(order.OneofDecl)) {
			order.OneofDecl = append(order.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new(fmt.Sprintf("_%d", f.GetOneofIndex()))})
		}
	}
	file.MessageType = append(file.MessageType, order)
	made, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return made.Messages().ByName("Order")
}

func field(name string, number int32, typ descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
	return &descriptorpb.FieldDescriptorProto{Name: new(name), Number: new(number), Type: typ.Enum(), Label: label.Enum()}
}

const (
	one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
	many = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
)

var (
	id    = field("id", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)
	lines = field("lines", 2, descriptorpb.FieldDescriptorProto_TYPE_INT32, many)
	note  = field("note", 3, descriptorpb.FieldDescriptorProto_TYPE_STRING, one)
)

func parse(t testing.TB, md protoreflect.MessageDescriptor, wire string) proto.Message {
	t.Helper()
	m := dynamicpb.NewMessage(md)
	if err := proto.Unmarshal([]byte(wire), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func print1(m proto.Message) semel.Fingerprint { return new(schemas).fingerprint("/p/M", m) }

// TestFingerprintOfEncodings: one message in several encodings is one request.
func TestFingerprintOfEncodings(t *testing.T) {
	md := order(t, id, lines, note)
	want := print1(parse(t, md, "\x08\x07\x12\x02\x01\x02\x1a\x01x"))
	for name, wire := range map[string]string{
		"fields in another order":   "\x1a\x01x\x12\x02\x01\x02\x08\x07",
		"unpacked":                  "\x08\x07\x10\x01\x10\x02\x1a\x01x",
		"a longer varint":           "\x08\x87\x00\x12\x02\x01\x02\x1a\x01x",
		"a field sent twice":        "\x08\x09\x08\x07\x12\x02\x01\x02\x1a\x01x",
		"a list in two parts":       "\x08\x07\x12\x01\x01\x12\x01\x02\x1a\x01x",
		"a default value in front":  "\x1a\x00\x08\x07\x12\x02\x01\x02\x1a\x01x",
		"as deterministic encoding": "\x08\x07\x12\x02\x01\x02\x1a\x01x",
	} {
		if got := print1(parse(t, md, wire)); got.Scheme != want.Scheme || got.Differs(want) {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	for name, wire := range map[string]string{
		"another value":     "\x08\x08\x12\x02\x01\x02\x1a\x01x",
		"another order":     "\x08\x07\x12\x02\x02\x01\x1a\x01x",
		"a shorter list":    "\x08\x07\x12\x01\x01\x1a\x01x",
		"no note":           "\x08\x07\x12\x02\x01\x02",
		"an unknown field":  "\x08\x07\x12\x02\x01\x02\x1a\x01x\x20\x01",
		"moved to the note": "\x08\x07\x1a\x03x\x01\x02",
	} {
		if !print1(parse(t, md, wire)).Differs(want) {
			t.Errorf("%s: the same fingerprint", name)
		}
	}
	if !new(schemas).fingerprint("/p/Other", parse(t, md, "\x08\x07\x12\x02\x01\x02\x1a\x01x")).Differs(want) {
		t.Error("another method: the same fingerprint")
	}
}

// TestFingerprintIsFramed: what follows a list must not read as a part of it.
func TestFingerprintIsFramed(t *testing.T) {
	md := order(t, id, lines, note)
	short := "\x12\x01\x01" + "\x1a\x11" + "\x00\x00\x00\x00\x00\x00\x00\x03" + "\x00\x00\x00\x00\x00\x00\x00\x01y"
	long := "\x12\x03\x01\x03\x11" + "\x1a\x01y"
	if !print1(parse(t, md, short)).Differs(print1(parse(t, md, long))) {
		t.Error("two requests have one fingerprint")
	}
}

// TestFingerprintAcrossVersions: a field that the program did not know before is
// no mismatch.
func TestFingerprintAcrossVersions(t *testing.T) {
	const wire = "\x08\x07\x1a\x01x"
	before, after := print1(parse(t, order(t, id), wire)), print1(parse(t, order(t, id, note), wire))
	if before.Sum == after.Sum {
		t.Error("the digests agree, so the test says nothing")
	}
	if before.Differs(after) {
		t.Error("a retry across a change of the schema is a mismatch")
	}
	if again := print1(parse(t, order(t, id, note), wire)); again != after {
		t.Error("the same schema, loaded again, gives another fingerprint")
	}
}

// TestExplicitZeroIsNoMismatch: whether a zero is sent depends on the schema that
// the client was built with, and whether it is seen on the server's. It is one
// request all the same.
func TestExplicitZeroIsNoMismatch(t *testing.T) {
	for _, tt := range []struct {
		typ         descriptorpb.FieldDescriptorProto_Type
		zero, other string
	}{
		{descriptorpb.FieldDescriptorProto_TYPE_INT64, "\x08\x00", "\x08\x01"},
		{descriptorpb.FieldDescriptorProto_TYPE_DOUBLE, "\x09\x00\x00\x00\x00\x00\x00\x00\x00", "\x09\x00\x00\x00\x00\x00\x00\x00\x80"}, // -0
		{descriptorpb.FieldDescriptorProto_TYPE_BOOL, "\x08\x00", "\x08\x01"},
		{descriptorpb.FieldDescriptorProto_TYPE_STRING, "\x0a\x00", "\x0a\x01x"},
		{descriptorpb.FieldDescriptorProto_TYPE_BYTES, "\x0a\x00", "\x0a\x01\x00"},
		{descriptorpb.FieldDescriptorProto_TYPE_ENUM, "\x08\x00", "\x08\x01"},
	} {
		t.Run(tt.typ.String(), func(t *testing.T) {
			plain := field("v", 1, tt.typ, one)
			if tt.typ == descriptorpb.FieldDescriptorProto_TYPE_ENUM {
				plain.TypeName = new(".google.protobuf.NullValue")
			}
			optional := proto.CloneOf(plain)
			optional.Proto3Optional, optional.OneofIndex = new(true), new(int32(0))
			presence := func(p descriptorpb.FeatureSet_FieldPresence) *descriptorpb.FileDescriptorProto {
				return &descriptorpb.FileDescriptorProto{
					Syntax: new("editions"), Edition: descriptorpb.Edition_EDITION_2023.Enum(), Dependency: []string{"google/protobuf/struct.proto"},
					Options: &descriptorpb.FileOptions{Features: &descriptorpb.FeatureSet{FieldPresence: p.Enum()}},
				}
			}
			proto3 := &descriptorpb.FileDescriptorProto{Syntax: new("proto3"), Dependency: []string{"google/protobuf/struct.proto"}}
			proto2 := &descriptorpb.FileDescriptorProto{Syntax: new("proto2"), Dependency: []string{"google/protobuf/struct.proto"}}
			versions := map[string]protoreflect.MessageDescriptor{
				"proto3":          orderOf(t, proto3, plain),
				"proto3 optional": orderOf(t, proto3, optional),
				"proto2":          orderOf(t, proto2, plain),
				"implicit":        orderOf(t, presence(descriptorpb.FeatureSet_IMPLICIT), plain),
				"explicit":        orderOf(t, presence(descriptorpb.FeatureSet_EXPLICIT), plain),
			}
			want := print1(parse(t, versions["proto3"], ""))
			for name, md := range versions {
				if set := parse(t, md, tt.zero).ProtoReflect().Has(md.Fields().Get(0)); set == (name == "proto3" || name == "implicit") {
					t.Fatalf("%s: a zero is set: %v, so the test says nothing", name, set)
				}
				for _, wire := range []string{"", tt.zero} {
					if got := print1(parse(t, md, wire)); got != want {
						t.Errorf("%s: %q has another fingerprint than the same request", name, wire)
					}
				}
				if !print1(parse(t, md, tt.other)).Differs(want) {
					t.Errorf("%s: %q and none have one fingerprint", name, tt.other)
				}
			}
		})
	}
}

// TestPresenceThatIsCompared: where every version of a schema tells set from not
// set, so does the fingerprint.
func TestPresenceThatIsCompared(t *testing.T) {
	inOneof := func(f *descriptorpb.FieldDescriptorProto) *descriptorpb.FieldDescriptorProto {
		f.OneofIndex = new(int32(0))
		return f
	}
	money := field("money", 3, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, one)
	money.TypeName = new(".google.protobuf.Int64Value")
	md := orderOf(t, &descriptorpb.FileDescriptorProto{Syntax: new("proto3"), Dependency: []string{"google/protobuf/wrappers.proto"}},
		inOneof(field("amount", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)),
		inOneof(field("share", 2, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)), money)
	with5 := field("v", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)
	with5.DefaultValue = new("5")
	five := orderOf(t, &descriptorpb.FileDescriptorProto{Syntax: new("proto2")}, with5)
	for _, tt := range []struct {
		md        protoreflect.MessageDescriptor
		a, b      string
		different bool
	}{
		{md, "", "\x08\x00", true},
		{md, "", "\x10\x00", true},
		{md, "\x08\x00", "\x10\x00", true},
		{md, "", "\x1a\x00", true},
		{md, "\x1a\x00", "\x1a\x02\x08\x00", false},
		{five, "", "\x08\x05", false},
		{five, "", "\x08\x00", true},
	} {
		if got := print1(parse(t, tt.md, tt.a)).Differs(print1(parse(t, tt.md, tt.b))); got != tt.different {
			t.Errorf("%v: %q and %q differ: %v, want %v", tt.md.Fields().Get(0), tt.a, tt.b, got, tt.different)
		}
	}
}

// TestSchemasThatReadDifferently: where a change of the schema makes another
// message of the same bytes, requests are not compared across it.
func TestSchemasThatReadDifferently(t *testing.T) {
	enum := func(values ...string) *descriptorpb.FileDescriptorProto {
		e := &descriptorpb.EnumDescriptorProto{Name: new("Color")}
		for i, v := range values {
			e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: &v, Number: new(int32(i))})
		}
		return &descriptorpb.FileDescriptorProto{Syntax: new("proto2"), EnumType: []*descriptorpb.EnumDescriptorProto{e}}
	}
	color := field("color", 1, descriptorpb.FieldDescriptorProto_TYPE_ENUM, one)
	color.TypeName = new(".semel.test.Color")
	json := func(t testing.TB, md protoreflect.MessageDescriptor, text string) proto.Message {
		m := dynamicpb.NewMessage(md)
		// As connect reads it.
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	check := func(name string, parse func(testing.TB, protoreflect.MessageDescriptor, string) proto.Message, text string, before, after protoreflect.MessageDescriptor) {
		t.Helper()
		x, y := print1(parse(t, before, text)), print1(parse(t, after, text))
		if x.Sum == y.Sum {
			t.Errorf("%s: the digests agree, so the test says nothing", name)
		}
		if x.Differs(y) {
			t.Errorf("%s: a retry across the change is a mismatch", name)
		}
	}
	kind := func(typ descriptorpb.FieldDescriptorProto_Type) protoreflect.MessageDescriptor {
		return order(t, field("v", 1, typ, one))
	}
	check("a new value of an enum", json, `{"color": "BLUE"}`, orderOf(t, enum("RED", "GREEN"), color), orderOf(t, enum("RED", "GREEN", "BLUE"), color))
	check("another name of a field", json, `{"id": 7}`, order(t, id), order(t, field("number", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)))
	check("another kind of integer", parse, "\x08\x02", kind(descriptorpb.FieldDescriptorProto_TYPE_INT64), kind(descriptorpb.FieldDescriptorProto_TYPE_SINT64))
	moved := field("id", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)
	moved.OneofIndex = new(int32(0))
	check("a field that moves into a oneof", parse, "\x08\x00", order(t, id), order(t, moved))
	five := field("id", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, one)
	five.DefaultValue = new("5")
	proto2 := &descriptorpb.FileDescriptorProto{Syntax: new("proto2")}
	check("another default", parse, "\x08\x05", orderOf(t, proto2, id), orderOf(t, proto2, five))
}

// TestExtensionOfAnotherVersion: an extension that the program did not know
// before is no mismatch.
func TestExtensionOfAnotherVersion(t *testing.T) {
	const wire = "\xa0\x06\x07" // field 100
	// What is registered stays so: another run needs another name.
	pkg := "semel.test.x" + semel.NewRecordID()
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("extended.proto"), Package: &pkg, Syntax: new("proto2"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Order"), ExtensionRange: []*descriptorpb.DescriptorProto_ExtensionRange{{Start: new(int32(100)), End: new(int32(101))}}}},
		Extension: []*descriptorpb.FieldDescriptorProto{{
			Name: new("note"), Number: new(int32(100)), Extendee: new("." + pkg + ".Order"),
			Type: descriptorpb.FieldDescriptorProto_TYPE_INT32.Enum(), Label: one.Enum(),
		}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	md := file.Messages().Get(0)
	before := print1(parse(t, md, wire))
	if err := protoregistry.GlobalTypes.RegisterExtension(dynamicpb.NewExtensionType(file.Extensions().Get(0))); err != nil {
		t.Fatal(err)
	}
	after := print1(parse(t, md, wire))
	if before.Sum == after.Sum {
		t.Error("the digests agree, so the test says nothing")
	}
	if before.Differs(after) {
		t.Error("a retry across the change is a mismatch")
	}
	if !print1(parse(t, md, "\xa0\x06\x08")).Differs(after) {
		t.Error("another value of the extension has the same fingerprint")
	}
	if print1(parse(t, md, "\xa0\x06\x00")) != print1(parse(t, md, "")) {
		t.Error("an extension that is zero is another request")
	}
}

func TestFingerprintOfValues(t *testing.T) {
	object := func(fields map[string]any) proto.Message {
		m, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	messages := []proto.Message{
		object(nil), object(map[string]any{"a": 1.0}), object(map[string]any{"a": "1"}), object(map[string]any{"a": nil}),
		object(map[string]any{"a": true}), object(map[string]any{"a": false}), object(map[string]any{"a": []any{}}),
		object(map[string]any{"a": []any{1.0, 2.0}}), object(map[string]any{"a": []any{2.0, 1.0}}), object(map[string]any{"a": map[string]any{}}),
		object(map[string]any{"a": 1.0, "b": 2.0}), object(map[string]any{"a": 2.0, "b": 1.0}), object(map[string]any{"ab": 1.0}),
		object(map[string]any{"a": map[string]any{"b": 1.0}}),
	}
	for i, m := range messages {
		for range 20 { // maps come in any order
			if print1(m).Differs(print1(proto.Clone(m))) {
				t.Errorf("%v has two fingerprints", m)
			}
		}
		for _, n := range messages[:i] {
			if !print1(m).Differs(print1(n)) {
				t.Errorf("%v and %v have one fingerprint", m, n)
			}
		}
	}
	for _, pair := range [][2]proto.Message{
		{wrapperspb.Int64(math.MinInt64), wrapperspb.Int64(math.MaxInt64)},
		{wrapperspb.Int64(1 << 53), wrapperspb.Int64(1<<53 + 1)},
		{wrapperspb.UInt64(math.MaxUint64), wrapperspb.UInt64(0)},
		{wrapperspb.UInt32(1), wrapperspb.UInt32(2)},
		{wrapperspb.Int32(-1), wrapperspb.Int32(1)},
		{wrapperspb.Double(0.1), wrapperspb.Double(0.2)},
		{wrapperspb.Float(0.1), wrapperspb.Float(0.2)},
		{wrapperspb.Bool(true), wrapperspb.Bool(false)},
		{wrapperspb.Bytes([]byte("a")), wrapperspb.Bytes([]byte("b"))},
		{&fieldmaskpb.FieldMask{Paths: []string{"a", "b"}}, &fieldmaskpb.FieldMask{Paths: []string{"ab"}}},
		{structpb.NewNullValue(), structpb.NewBoolValue(false)},
	} {
		if !print1(pair[0]).Differs(print1(pair[1])) {
			t.Errorf("%v and %v have one fingerprint", pair[0], pair[1])
		}
	}
}

// FuzzFingerprint: what reads alike has one fingerprint, all else has two.
func FuzzFingerprint(f *testing.F) {
	optional := field("optional", 4, descriptorpb.FieldDescriptorProto_TYPE_BOOL, one)
	optional.Proto3Optional, optional.OneofIndex = new(true), new(int32(0))
	md := order(f, id, lines, note, optional)
	f.Add("\x08\x07\x12\x02\x01\x02\x1a\x01x", "\x1a\x01x\x10\x01\x10\x02\x08\x07")
	f.Add("\x08\x00", "")
	f.Add("\x20\x00", "")
	f.Add("\x20\x01", "\x20\x00")
	f.Add("\x28\x01", "\x30\x01")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := dynamicpb.NewMessage(md), dynamicpb.NewMessage(md)
		if proto.Unmarshal([]byte(a), x) != nil || proto.Unmarshal([]byte(b), y) != nil {
			return
		}
		differ := print1(x).Differs(print1(y))
		for _, m := range []*dynamicpb.Message{x, y} {
			if set := md.Fields().ByName("optional"); !m.Get(set).Bool() {
				m.Clear(set)
			}
		}
		equal := proto.Equal(x, y)
		if len(x.GetUnknown())+len(y.GetUnknown()) > 0 {
			// proto.Equal does not mind the order of unknown fields.
			equal = string(x.GetUnknown()) == string(y.GetUnknown()) && equal
		}
		if differ == equal {
			t.Errorf("%v and %v: equal %v, but their fingerprints say otherwise", x, y, equal)
		}
	})
}

func TestNewMessage(t *testing.T) {
	m, err := newMessage("google.protobuf.StringValue")
	if _, ok := m.(*wrapperspb.StringValue); !ok || err != nil {
		t.Errorf("a known type gives %T, %v", m, err)
	}
	for _, name := range []protoreflect.FullName{"semel.test.None", "google.protobuf.NullValue", ""} {
		if m, err := newMessage(name); err == nil {
			t.Errorf("%q gives %T", name, m)
		}
	}
}

// TestDecodeRefuses: a record that is no reply of this package is not replayed.
func TestDecodeRefuses(t *testing.T) {
	good, err := encode(Reply{Message: wrapperspb.String("x"), Header: map[string][]string{"a-bin": {"\xff"}}}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := decode(good, good.Body)
	if err != nil || !proto.Equal(reply.Message, wrapperspb.String("x")) || reply.Header["a-bin"][0] != "\xff" {
		t.Fatalf("decoded %v, %v", reply, err)
	}
	for name, change := range map[string]func(*semel.Result){
		"tombstone":     func(r *semel.Result) { r.Tombstone = true },
		"other codec":   func(r *semel.Result) { r.Codec = "http/1" },
		"broken head":   func(r *semel.Result) { r.Head = []byte("{") },
		"unknown type":  func(r *semel.Result) { r.Head = []byte(`{"type":"semel.test.None"}`) },
		"broken body":   func(r *semel.Result) { r.Body = []byte("\x0a\x05") },
		"broken status": func(r *semel.Result) { r.Head, r.Body = []byte("{}"), []byte("\x0a\x05") },
	} {
		bad := good
		change(&bad)
		if _, err := decode(bad, bad.Body); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if _, err := encode(Reply{}, 1000); err == nil {
		t.Error("a reply without a message is encoded")
	}
}
