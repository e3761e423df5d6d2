package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// codec names the encoding of results: the head is JSON, the body is the
// response message, or a google.rpc.Status, in the wire format.
const codec = "rpc/1"

type head struct {
	// Type is the full name of the response message; empty in a failure.
	Type string `json:"type,omitempty"`
	// Values may be any bytes in metadata whose name ends in -bin.
	Header  map[string][][]byte `json:"header,omitempty"`
	Trailer map[string][][]byte `json:"trailer,omitempty"`
}

// inline is the largest reply that is recorded in one part.
const inline = semelhttp.DefaultMaxInline

// encode returns the result of a final reply: in pieces if it is larger than
// inline, a tombstone if it is larger than limit. What cannot be encoded has
// nonetheless happened.
func encode(r Reply, limit int) (semel.Result, error) {
	code := Code(r.Status.GetCode())
	res := semel.Result{Codec: codec, Label: code.String(), Failed: code != OK}
	h := head{Header: toBytes(r.Header), Trailer: toBytes(r.Trailer)}
	m := proto.Message(r.Status)
	if code == OK {
		m = r.Message
		if m == nil {
			return semel.Result{}, semel.Indeterminate("the handler returned neither a protobuf message nor an error", nil)
		}
		h.Type = string(m.ProtoReflect().Descriptor().FullName())
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return semel.Result{}, semel.Indeterminate("the response cannot be encoded", err)
	}
	text, err := json.Marshal(h)
	if err != nil {
		return semel.Result{}, semel.Indeterminate("the metadata cannot be encoded", err)
	}
	switch size := len(text) + len(body); {
	case size > limit, len(text) > inline:
		res.Tombstone = true
	case size > inline:
		res.Head, res.Pieces = text, pieces(body)
	default:
		res.Head, res.Body = text, body
	}
	return res, nil
}

func pieces(body []byte) *semel.Pieces {
	p := &semel.Pieces{Size: int64(len(body))}
	p.Read = func(_ context.Context, n int) ([]byte, error) {
		if n < 0 || n >= p.Count() {
			return nil, fmt.Errorf("rpc: there is no piece %d", n)
		}
		return body[n*semel.PieceBytes:][:p.Length(n)], nil
	}
	return p
}

// wholeBody reads the body of a recorded reply. A message must be in memory as a
// whole to be sent. Each piece may take timeout.
func wholeBody(ctx context.Context, r semel.Result, timeout time.Duration) ([]byte, error) {
	if r.Pieces == nil {
		return r.Body, nil
	}
	body := make([]byte, 0, r.Pieces.Size)
	for n := range r.Pieces.Count() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		piece, err := r.Pieces.ReadPiece(ctx, n)
		cancel()
		if err != nil {
			return nil, err
		}
		body = append(body, piece...)
	}
	return body, nil
}

var errNotRetained = errors.New("rpc: the record holds no reply")

// decode returns the reply that r was made of, whose body is at hand.
func decode(r semel.Result, body []byte) (Reply, error) {
	if r.Tombstone || r.Codec != codec {
		return Reply{}, errNotRetained
	}
	var h head
	if err := json.Unmarshal(r.Head, &h); err != nil {
		return Reply{}, fmt.Errorf("rpc: head: %w", err)
	}
	reply := Reply{Header: toStrings(h.Header), Trailer: toStrings(h.Trailer)}
	if h.Type == "" {
		reply.Status = new(spb.Status)
		return reply, proto.Unmarshal(body, reply.Status)
	}
	m, err := newMessage(protoreflect.FullName(h.Type))
	if err != nil {
		return Reply{}, err
	}
	reply.Message = m
	return reply, proto.Unmarshal(body, m)
}

// newMessage makes a message of a type that the program knows.
func newMessage(name protoreflect.FullName) (proto.Message, error) {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(name); err == nil {
		return t.New().Interface(), nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	md, ok := d.(protoreflect.MessageDescriptor)
	if !ok {
		return nil, errNotRetained
	}
	return dynamicpb.NewMessage(md), nil
}

// NoSideEffects reports whether the procedure is known to the program and
// declared as one without side effects.
func NoSideEffects(procedure string) bool {
	name := make([]byte, 0, len(procedure))
	for i := range len(procedure) {
		switch c := procedure[i]; {
		case c != '/':
			name = append(name, c)
		case i > 0:
			name = append(name, '.')
		}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	options, ok := d.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

func toBytes(md map[string][]string) map[string][][]byte {
	if len(md) == 0 {
		return nil
	}
	out := make(map[string][][]byte, len(md))
	for name, values := range md {
		list := make([][]byte, len(values))
		for i, v := range values {
			list[i] = []byte(v)
		}
		out[name] = list
	}
	return out
}

func toStrings(md map[string][][]byte) map[string][]string {
	if len(md) == 0 {
		return nil
	}
	out := make(map[string][]string, len(md))
	for name, values := range md {
		list := make([]string, len(values))
		for i, v := range values {
			list[i] = string(v)
		}
		out[name] = list
	}
	return out
}
