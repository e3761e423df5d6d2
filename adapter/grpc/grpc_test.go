package semelgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelgrpc "github.com/semelhq/semel/adapter/grpc"
	"github.com/semelhq/semel/store/memory"
)

const (
	pay   = "/semel.test.Payments/Pay"
	get   = "/semel.test.Payments/Get" // NO_SIDE_EFFECTS
	watch = "/semel.test.Payments/Watch"
)

// The file that a generated package would register.
func init() {
	method := func(name string, level descriptorpb.MethodOptions_IdempotencyLevel, streams bool) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: new(name), InputType: new(".google.protobuf.Struct"), OutputType: new(".google.protobuf.StringValue"),
			Options: &descriptorpb.MethodOptions{IdempotencyLevel: level.Enum()}, ServerStreaming: &streams,
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("semel/test/payments.proto"), Package: new("semel.test"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/struct.proto", "google/protobuf/wrappers.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new("Payments"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Pay", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN, false),
			method("Get", descriptorpb.MethodOptions_NO_SIDE_EFFECTS, false),
			method("Watch", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN, true),
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		panic(err)
	}
}

type handler func(ctx context.Context, req *structpb.Struct) (*wrapperspb.StringValue, error)

type rig struct {
	t     *testing.T
	conn  *grpc.ClientConn
	guard *semel.Guard
	store *memory.Store
	// effects counts calls of the handler, streaming ones included.
	effects atomic.Int64
}

type options struct {
	config semelgrpc.Config
	store  semel.Store // nil for a store/memory
	policy semel.Policy
	front  []grpc.UnaryServerInterceptor
	dial   []grpc.DialOption
}

func newRig(t *testing.T, h handler, o options) *rig {
	t.Helper()
	r := &rig{t: t}
	var err error
	if r.store, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	if o.store == nil {
		o.store = r.store
	}
	if r.guard, err = semel.New(semel.Config{Store: o.store, Policy: o.policy}); err != nil {
		t.Fatal(err)
	}
	o.config.Guard = r.guard
	if o.config.Scope == nil {
		o.config.Scope = func(ctx context.Context, _ string, _ proto.Message) (semel.Scope, error) {
			return semel.Scope{Actor: first(metadata.ValueFromIncomingContext(ctx, "user"))}, nil
		}
	}
	once, err := semelgrpc.New(o.config)
	if err != nil {
		t.Fatal(err)
	}
	unary := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := new(structpb.Struct)
			if err := decode(req); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{FullMethod: "/semel.test.Payments/" + name}
			return interceptor(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				r.effects.Add(1)
				resp, err := h(ctx, req.(*structpb.Struct))
				if err != nil {
					return nil, err
				}
				return resp, nil
			})
		}}
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(append(o.front, once.Unary)...),
		grpc.ChainStreamInterceptor(once.Stream),
	)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "semel.test.Payments",
		Methods:     []grpc.MethodDesc{unary("Pay"), unary("Get")},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(any, grpc.ServerStream) error {
			r.effects.Add(1)
			return nil
		}}},
	}, nil)
	listener := bufconn.Listen(1 << 20)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	r.conn, err = grpc.NewClient("passthrough:///buf", append(o.dial,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.conn.Close()
		server.Stop()
		<-served
	})
	return r
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

type answer struct {
	text            string
	err             error
	header, trailer metadata.MD
}

func (a answer) replayed() bool { return first(a.header.Get(semelgrpc.MetadataReplayed)) == "true" }

func as(ctx context.Context, user string, keys ...string) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "user", user)
	for _, k := range keys {
		ctx = metadata.AppendToOutgoingContext(ctx, semelgrpc.MetadataKey, k)
	}
	return ctx
}

func (r *rig) call(ctx context.Context, method string, fields map[string]any) answer {
	req, err := structpb.NewStruct(fields)
	if err != nil {
		r.t.Error(err)
	}
	var a answer
	resp := new(wrapperspb.StringValue)
	a.err = r.conn.Invoke(ctx, method, req, resp, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	a.text = resp.GetValue()
	return a
}

func (r *rig) wantEffects(n int64) {
	r.t.Helper()
	if got := r.effects.Load(); got != n {
		r.t.Errorf("%d effects, want %d", got, n)
	}
}

// wantRefusal checks a refusal, its advice and its RetryInfo.
func wantRefusal(t *testing.T, a answer, code codes.Code, reason string, retry semel.RetryAdvice, after bool) {
	t.Helper()
	s := status.Convert(a.err)
	var info *errdetails.ErrorInfo
	var delay *errdetails.RetryInfo
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			delay = d
		}
	}
	if s.Code() != code || info.GetReason() != reason || info.GetDomain() != semelgrpc.Domain || info.GetMetadata()["retry"] != string(retry) {
		t.Errorf("refused with %v %v %q, want %v %s %s", s.Code(), info, s.Message(), code, reason, retry)
	}
	if (delay.GetRetryDelay().AsDuration() > 0) != after {
		t.Errorf("the delay before a retry is %v, want one: %v", delay, after)
	}
	if a.replayed() {
		t.Error("a refusal is marked as a replay")
	}
}

var ten = map[string]any{"amount": 10.0, "to": "bob", "note": map[string]any{"a": "1", "b": "2", "c": "3"}}

func TestReplay(t *testing.T) {
	r := newRig(t, func(ctx context.Context, req *structpb.Struct) (*wrapperspb.StringValue, error) {
		if _, ok := semel.CurrentExecution(ctx); ok != (len(metadata.ValueFromIncomingContext(ctx, semelgrpc.MetadataKey)) > 0) {
			return nil, errors.New("not the execution's context")
		}
		if err := errors.Join(
			grpc.SetHeader(ctx, metadata.Pairs("X-Order", "7", "x-order", "8", "raw-bin", "\xff\x00")),
			grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "1")),
			grpc.SendHeader(ctx, metadata.Pairs("x-sent", "yes")),
			grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "2")),
		); err != nil {
			return nil, err
		}
		if grpc.SetHeader(ctx, metadata.Pairs("x-late", "1")) == nil {
			return nil, errors.New("SetHeader works after SendHeader")
		}
		return wrapperspb.String("paid " + req.Fields["to"].GetStringValue()), nil
	}, options{})

	original := r.call(as(t.Context(), "ann", "k"), pay, ten)
	if original.err != nil || original.text != "paid bob" || original.replayed() {
		t.Fatalf("the answer is %+v", original)
	}
	replay := r.call(as(t.Context(), "ann", `"k"`), pay, ten)
	if replay.err != nil || replay.text != original.text || !replay.replayed() {
		t.Errorf("the replay is %+v", replay)
	}
	for _, a := range []answer{original, replay} {
		if got := a.header.Get("x-order"); !slices.Equal(got, []string{"7", "8"}) {
			t.Errorf("x-order is %q", got)
		}
		if got := a.header.Get("raw-bin"); !slices.Equal(got, []string{"\xff\x00"}) {
			t.Errorf("raw-bin is %q", got)
		}
		if got := a.header.Get("x-sent"); !slices.Equal(got, []string{"yes"}) {
			t.Errorf("x-sent is %q", got)
		}
		if got := a.trailer.Get("x-sum"); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("x-sum is %q", got)
		}
		if _, err := time.Parse(time.RFC1123, first(a.header.Get(semelgrpc.MetadataExpires))); err != nil {
			t.Error(err)
		}
	}
	r.wantEffects(1)

	// Another request, another method.
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, map[string]any{"amount": 11.0}), codes.InvalidArgument, "KEY_MISMATCH", semel.RetryNo, false)
	r.wantEffects(1)
	// Another actor, and no key.
	for i, ctx := range []context.Context{as(t.Context(), "eve", "k"), as(t.Context(), "ann"), as(t.Context(), "ann")} {
		if a := r.call(ctx, pay, ten); a.err != nil || a.replayed() {
			t.Errorf("%d: the answer is %+v", i, a)
		}
	}
	r.wantEffects(4)
	wantRefusal(t, r.call(as(t.Context(), "ann", "a,b"), pay, ten), codes.InvalidArgument, "KEY_MALFORMED", semel.RetryNewKey, false)
	wantRefusal(t, r.call(as(t.Context(), "ann", "k", "k"), pay, ten), codes.InvalidArgument, "KEY_MALFORMED", semel.RetryNewKey, false)
	r.wantEffects(4)
}

func TestRequireKey(t *testing.T) {
	r := newRig(t, paid, options{config: semelgrpc.Config{RequireKey: true}})
	wantRefusal(t, r.call(as(t.Context(), "ann"), pay, ten), codes.InvalidArgument, "KEY_MISSING", semel.RetryNewKey, false)
	r.wantEffects(0)
	for range 2 {
		if a := r.call(as(t.Context(), "ann", "k"), get, ten); a.err != nil {
			t.Error(a.err)
		}
	}
	if a := r.call(as(t.Context(), "ann"), get, ten); a.err != nil {
		t.Error(a.err)
	}
	r.wantEffects(3) // a method without side effects passes
}

// TestRace: of many calls at once one executes, the others are told to come
// back or get its reply.
func TestRace(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
		close(entered)
		<-proceed
		return wrapperspb.String("paid"), nil
	}, options{})
	var winner answer
	var calls sync.WaitGroup
	calls.Go(func() { winner = r.call(as(t.Context(), "ann", "k"), pay, ten) })
	<-entered
	var losers sync.WaitGroup
	for range 50 {
		losers.Go(func() {
			wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.Aborted, "IN_PROGRESS", semel.RetrySameKey, true)
			wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, nil), codes.InvalidArgument, "KEY_MISMATCH", semel.RetryNo, false)
		})
	}
	losers.Wait()
	close(proceed)
	calls.Wait()
	if winner.err != nil || winner.text != "paid" {
		t.Errorf("the winner's answer is %+v", winner)
	}
	if a := r.call(as(t.Context(), "ann", "k"), pay, ten); !a.replayed() || a.text != "paid" {
		t.Errorf("the replay is %+v", a)
	}
	r.wantEffects(1)
}

func TestUnsynchronizedRace(t *testing.T) {
	r := newRig(t, paid, options{config: semelgrpc.Config{Wait: time.Minute}, policy: semel.Policy{MaxWaiters: 100}})
	var executed, replayed atomic.Int64
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			switch a := r.call(as(t.Context(), "ann", "k"), pay, ten); {
			case a.err != nil || a.text != "paid":
				t.Errorf("the answer is %+v", a)
			case a.replayed():
				replayed.Add(1)
			default:
				executed.Add(1)
			}
		})
	}
	calls.Wait()
	r.wantEffects(1)
	if executed.Load() != 1 || replayed.Load() != 99 {
		t.Errorf("%d executed and %d replayed, want 1 and 99", executed.Load(), replayed.Load())
	}
}

// TestClientGone: the handler does not depend on the client nor on its deadline.
func TestClientGone(t *testing.T) {
	type valueKey struct{}
	calls := make(chan context.Context, 1)
	entered := make(chan struct{})
	r := newRig(t, func(ctx context.Context, _ *structpb.Struct) (*wrapperspb.StringValue, error) {
		close(entered)
		<-(<-calls).Done() // the server knows that the client has gone
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if d, ok := ctx.Deadline(); !ok || time.Until(d) < 5*time.Minute {
			return nil, fmt.Errorf("the handler's deadline is %v, that of the client", d)
		}
		if ctx.Value(valueKey{}) != "kept" || first(metadata.ValueFromIncomingContext(ctx, "user")) != "ann" {
			return nil, errors.New("the handler's context has lost the values of the call's")
		}
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-late", "1")); err != nil {
			return nil, err
		}
		return wrapperspb.String("paid"), nil
	}, options{front: []grpc.UnaryServerInterceptor{
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			select {
			case calls <- ctx:
			default:
			}
			return next(context.WithValue(ctx, valueKey{}, "kept"), req)
		},
	}})
	ctx, cancel := context.WithTimeout(as(t.Context(), "ann", "k"), time.Minute)
	defer cancel()
	gone := make(chan answer)
	go func() { gone <- r.call(ctx, pay, ten) }()
	<-entered
	cancel()
	if a := <-gone; status.Code(a.err) != codes.Canceled {
		t.Errorf("the client's answer is %+v", a)
	}

	if err := r.guard.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := newRig(t, paid, options{store: r.store})
	a := again.call(as(t.Context(), "ann", "k"), pay, ten)
	if a.err != nil || a.text != "paid" || !a.replayed() || first(a.header.Get("x-late")) != "1" {
		t.Errorf("the replay is %+v", a)
	}
	r.wantEffects(1)
	again.wantEffects(0)
	// A guard that is drained takes nothing new.
	wantRefusal(t, r.call(as(t.Context(), "ann", "k2"), pay, ten), codes.Unavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true)
}

// TestPanic: a panic leaves the outcome unknown and reaches the recovery in front.
func TestPanic(t *testing.T) {
	r := newRig(t, func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) { panic("half way") }, options{front: []grpc.UnaryServerInterceptor{
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
			defer func() {
				if recover() == "half way" {
					err = status.Error(codes.Internal, "recovered")
				}
			}()
			return next(ctx, req)
		},
	}})
	if s := status.Convert(r.call(as(t.Context(), "ann", "k"), pay, ten).err); s.Message() != "recovered" {
		t.Errorf("the status is %v, not that of the recovery", s)
	}
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.FailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
	r.wantEffects(1)
}

func TestStreams(t *testing.T) {
	stream := func(r *rig, ctx context.Context) answer {
		s, err := r.conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}, watch)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.SendMsg(new(structpb.Struct)), s.CloseSend()); err != nil {
			t.Fatal(err)
		}
		return answer{err: s.RecvMsg(new(wrapperspb.StringValue))}
	}
	r := newRig(t, paid, options{})
	wantRefusal(t, stream(r, as(t.Context(), "ann", "k")), codes.Unimplemented, "STREAM_NOT_PROTECTED", semel.RetryNo, false)
	r.wantEffects(0)
	stream(r, as(t.Context(), "ann"))
	r.wantEffects(1) // nobody asked for protection

	r = newRig(t, paid, options{config: semelgrpc.Config{RequireKey: true}})
	wantRefusal(t, stream(r, as(t.Context(), "ann")), codes.Unimplemented, "STREAM_NOT_PROTECTED", semel.RetryNo, false)
	r.wantEffects(0)

	r = newRig(t, paid, options{config: semelgrpc.Config{RequireKey: true, Protects: func(m string) bool { return m != watch }}})
	stream(r, as(t.Context(), "ann", "k"))
	r.wantEffects(1)
}

// TestTooLarge: the caller that executed gets the reply, the others are told.
func TestTooLarge(t *testing.T) {
	r := newRig(t, paid, options{config: semelgrpc.Config{MaxResult: 10}})
	if a := r.call(as(t.Context(), "ann", "k"), pay, ten); a.err != nil || a.text != "paid" {
		t.Errorf("the answer is %+v", a)
	}
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.FailedPrecondition, "RESULT_NOT_RETAINED", semel.RetryNo, false)
	r.wantEffects(1)
}

func TestConfig(t *testing.T) {
	_, err := semelgrpc.New(semelgrpc.Config{MaxResult: -1, Wait: -1, KeyRules: semel.KeyRules{MinLength: -1}})
	if err == nil {
		t.Fatal("New takes an empty configuration")
	}
	for _, field := range []string{"Guard", "Scope", "MaxResult", "Wait", "key rules"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}
