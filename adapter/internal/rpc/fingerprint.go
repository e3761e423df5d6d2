package rpc

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/semelhq/semel"
)

// schemas makes fingerprints of calls. Neither the bytes on the wire nor the
// library's deterministic encoding will do: the same message has many encodings,
// and which one is deterministic may change with the library. So the digest is
// of the message's fields in the order of their numbers.
//
// A field that is unknown to one version of the program and known to the next
// would give two digests for one request. Hence the scheme names the schema: of
// a request whose message type has changed since, it is not known whether it is
// the same, and that is never a mismatch. Bytes of an unknown field, and in a
// google.protobuf.Any, are taken as they come.
type schemas struct {
	ids sync.Map // of protoreflect.MessageDescriptor to string
}

const scheme = "protobuf/1-"

func (s *schemas) fingerprint(procedure string, m proto.Message) semel.Fingerprint {
	r := m.ProtoReflect()
	f := semel.Fingerprint{Scheme: scheme + s.id(r.Descriptor())}
	b := appendBytes(nil, []byte(procedure))
	b = appendMessage(b, r)
	f.Sum = sha256.Sum256(b)
	return f
}

// id is a digest of all message types that a message of type md can hold.
func (s *schemas) id(md protoreflect.MessageDescriptor) string {
	if id, ok := s.ids.Load(md); ok {
		return id.(string)
	}
	reachable := map[protoreflect.FullName]protoreflect.MessageDescriptor{}
	reach(reachable, md)
	names := make([]protoreflect.FullName, 0, len(reachable))
	for name := range reachable {
		names = append(names, name)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		// That its encoding may change with the library is no harm here.
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToDescriptorProto(reachable[name]))
		if err != nil {
			text = []byte(name)
		}
		h.Write(appendBytes([]byte(name), text))
	}
	id := hex.EncodeToString(h.Sum(nil)[:8])
	// Types that are made at run time may come without end.
	if known, err := protoregistry.GlobalFiles.FindDescriptorByName(md.FullName()); err == nil && known == protoreflect.Descriptor(md) {
		s.ids.Store(md, id)
	}
	return id
}

func reach(found map[protoreflect.FullName]protoreflect.MessageDescriptor, md protoreflect.MessageDescriptor) {
	if _, ok := found[md.FullName()]; ok {
		return
	}
	found[md.FullName()] = md
	for i := range md.Fields().Len() {
		if sub := md.Fields().Get(i).Message(); sub != nil {
			reach(found, sub)
		}
	}
}

type populated struct {
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

// appendMessage appends m such that equal messages are appended alike, however
// they were encoded, and others are not.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	var fields []populated
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, populated{f, v})
		return true
	})
	slices.SortFunc(fields, func(x, y populated) int { return cmp.Compare(x.field.Number(), y.field.Number()) })
	b = appendUint(b, uint64(len(fields)))
	for _, p := range fields {
		b = appendUint(b, uint64(p.field.Number()))
		switch {
		case p.field.IsMap():
			b = appendMap(b, p.field, p.value.Map())
		case p.field.IsList():
			list := p.value.List()
			b = appendUint(b, uint64(list.Len()))
			for i := range list.Len() {
				b = appendValue(b, p.field, list.Get(i))
			}
		default:
			b = appendValue(b, p.field, p.value)
		}
	}
	return appendBytes(b, m.GetUnknown())
}

func appendMap(b []byte, f protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	entries := make([][]byte, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		e := appendValue(nil, f.MapKey(), k.Value())
		entries = append(entries, appendValue(e, f.MapValue(), v))
		return true
	})
	slices.SortFunc(entries, bytes.Compare)
	b = appendUint(b, uint64(len(entries)))
	for _, e := range entries {
		b = appendBytes(b, e)
	}
	return b
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendBytes(b, []byte(v.String()))
	case protoreflect.BytesKind:
		return appendBytes(b, v.Bytes())
	case protoreflect.BoolKind:
		if v.Bool() {
			return appendUint(b, 1)
		}
		return appendUint(b, 0)
	case protoreflect.EnumKind:
		return appendUint(b, uint64(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendUint(b, math.Float64bits(v.Float()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return appendUint(b, v.Uint())
	}
	return appendUint(b, uint64(v.Int()))
}

func appendBytes(b, p []byte) []byte { return append(appendUint(b, uint64(len(p))), p...) }

func appendUint(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }
