package rpc

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/semelhq/semel"
)

// schemas makes fingerprints of calls. Neither the bytes on the wire nor the
// library's deterministic encoding will do: the same message has many encodings,
// and which one is deterministic may change with the library. So the digest is
// of the message's fields in the order of their numbers.
//
// What is compared is what a message says to those who read its fields, not
// whether a scalar was set: one that was set to its default is like one that was
// not. Which of the two a client sends for one and the same request depends on
// the version of the schema that it was built with (proto2 or proto3, optional or
// not), and a retry may come from the next. Where there is presence in every
// version it is compared: of messages, and of the members of a oneof.
//
// A field that is unknown to one version of the program and known to the next
// would give two digests for one request. Hence the scheme names what of the
// schema decides how a request is read: if that has changed since, it is not
// known whether it is the same, and that is never a mismatch. Bytes of an unknown
// field, and in a google.protobuf.Any, are taken as they come.
type schemas struct {
	ids sync.Map // of protoreflect.MessageDescriptor to string
}

const scheme = "protobuf/2-"

func (s *schemas) fingerprint(procedure string, m proto.Message) semel.Fingerprint {
	r := m.ProtoReflect()
	f := semel.Fingerprint{Scheme: scheme + s.id(r.Descriptor())}
	b := appendString(nil, procedure)
	b = appendMessage(b, r)
	f.Sum = sha256.Sum256(b)
	return f
}

// id is a digest of all message types that a message of type md can hold, as far
// as they decide how its bytes, or its JSON, become fields.
func (s *schemas) id(md protoreflect.MessageDescriptor) string {
	if id, ok := s.ids.Load(md); ok {
		return id.(string)
	}
	reachable := map[protoreflect.FullName]protoreflect.MessageDescriptor{}
	reach(reachable, md)
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(reachable)) {
		fields := fieldsOf(reachable[name])
		b = appendString(b, name)
		b = appendUint(b, uint64(len(fields)))
		for _, f := range fields {
			b = appendSchema(b, f)
		}
	}
	sum := sha256.Sum256(b)
	id := hex.EncodeToString(sum[:8])
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
	for _, f := range fieldsOf(md) {
		if sub := f.Message(); sub != nil {
			reach(found, sub)
		}
	}
}

// fieldsOf returns the fields of a message, with those extensions that the
// program knows, in the order of their numbers.
func fieldsOf(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	var fields []protoreflect.FieldDescriptor
	for i := range md.Fields().Len() {
		fields = append(fields, md.Fields().Get(i))
	}
	if md.ExtensionRanges().Len() > 0 {
		protoregistry.GlobalTypes.RangeExtensionsByMessage(md.FullName(), func(x protoreflect.ExtensionType) bool {
			fields = append(fields, x.TypeDescriptor())
			return true
		})
	}
	slices.SortFunc(fields, func(x, y protoreflect.FieldDescriptor) int { return cmp.Compare(x.Number(), y.Number()) })
	return fields
}

// appendSchema appends what of f decides how it is read and compared. Presence,
// packing and options do not.
func appendSchema(b []byte, f protoreflect.FieldDescriptor) []byte {
	b = appendUint(b, uint64(f.Number()))
	b = appendString(b, f.FullName())
	b = appendString(b, f.JSONName())
	b = appendUint(b, uint64(f.Kind()))
	b = appendBool(b, f.IsList())
	b = appendBool(b, f.IsMap())
	oneof, sub := protoreflect.FullName(""), protoreflect.FullName("")
	if o := oneofOf(f); o != nil {
		oneof = o.FullName()
	}
	if m := f.Message(); m != nil {
		sub = m.FullName()
	}
	b = appendString(appendString(b, oneof), sub)
	b = appendBool(b, f.HasDefault())
	if f.HasDefault() {
		b = appendValue(b, f, f.Default())
	}
	enum := f.Enum()
	b = appendBool(b, enum != nil)
	if enum == nil {
		return b
	}
	b = appendUint(b, uint64(enum.Values().Len())) // in JSON they go by their names
	for i := range enum.Values().Len() {
		v := enum.Values().Get(i)
		b = appendUint(b, uint64(v.Number()))
		b = appendString(b, v.Name())
	}
	return b
}

// oneofOf returns the oneof that f is a member of; nil if there is none but what
// stands for a field that is optional.
func oneofOf(f protoreflect.FieldDescriptor) protoreflect.OneofDescriptor {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return o
	}
	return nil
}

// readsAsUnset reports whether v is what f has when it is not set, and nothing
// else would tell.
func readsAsUnset(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return f.HasPresence() && f.Message() == nil && oneofOf(f) == nil &&
		bytes.Equal(appendValue(nil, f, v), appendValue(nil, f, f.Default()))
}

type populated struct {
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

// appendMessage appends m such that messages that read alike are appended alike,
// however they were encoded, and others are not.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	var fields []populated
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !readsAsUnset(f, v) {
			fields = append(fields, populated{f, v})
		}
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
		return appendString(b, v.String())
	case protoreflect.BytesKind:
		return appendBytes(b, v.Bytes())
	case protoreflect.BoolKind:
		return appendBool(b, v.Bool())
	case protoreflect.EnumKind:
		return appendUint(b, uint64(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendUint(b, math.Float64bits(v.Float()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return appendUint(b, v.Uint())
	}
	return appendUint(b, uint64(v.Int()))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return appendUint(b, 1)
	}
	return appendUint(b, 0)
}

func appendString[S ~string](b []byte, s S) []byte {
	return append(appendUint(b, uint64(len(s))), s...)
}

func appendBytes(b, p []byte) []byte { return append(appendUint(b, uint64(len(p))), p...) }

func appendUint(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }
