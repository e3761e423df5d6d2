package rpc

import (
	"math"
	"testing"

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
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("order.proto"), Package: new("semel.test"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Order"), Field: fields}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0)
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

// FuzzFingerprint: what parses as equal messages has one fingerprint, all else
// has two.
func FuzzFingerprint(f *testing.F) {
	md := order(f, id, lines, note)
	f.Add("\x08\x07\x12\x02\x01\x02\x1a\x01x", "\x1a\x01x\x10\x01\x10\x02\x08\x07")
	f.Add("\x08\x00", "")
	f.Add("\x20\x01", "\x28\x01")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := dynamicpb.NewMessage(md), dynamicpb.NewMessage(md)
		if proto.Unmarshal([]byte(a), x) != nil || proto.Unmarshal([]byte(b), y) != nil {
			return
		}
		equal := proto.Equal(x, y)
		if len(x.GetUnknown())+len(y.GetUnknown()) > 0 {
			// proto.Equal does not mind the order of unknown fields.
			equal = string(x.GetUnknown()) == string(y.GetUnknown()) && equal
		}
		if print1(x).Differs(print1(y)) == equal {
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
	reply, err := decode(good)
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
		if _, err := decode(bad); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if _, err := encode(Reply{}, 1000); err == nil {
		t.Error("a reply without a message is encoded")
	}
}
