package semelgrpc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
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
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelgrpc "github.com/semelhq/semel/adapter/grpc"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/sqlite"
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

func paid(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("paid"), nil
}

// TestStatuses: what becomes of each kind of error that a handler returns.
func TestStatuses(t *testing.T) {
	detailed, err := status.New(codes.InvalidArgument, "no such account").WithDetails(protoadapt.MessageV1Of(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "to", Description: "unknown"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	const (
		recorded = iota
		freed
		held
	)
	tests := []struct {
		name string
		err  error
		what int
		want *status.Status // of the executing call; its code if held
	}{
		{"with details", detailed.Err(), recorded, detailed},
		{"INTERNAL", status.Error(codes.Internal, "broke"), recorded, status.New(codes.Internal, "broke")},
		{"no status", errors.New("plain"), recorded, status.New(codes.Unknown, "plain")},
		{"UNAUTHENTICATED", status.Error(codes.Unauthenticated, "who"), freed, status.New(codes.Unauthenticated, "who")},
		{"RESOURCE_EXHAUSTED", status.Error(codes.ResourceExhausted, "slow"), freed, status.New(codes.ResourceExhausted, "slow")},
		{"UNAVAILABLE", status.Error(codes.Unavailable, "upstream"), held, status.New(codes.Unknown, "")},
		{"DEADLINE_EXCEEDED", context.DeadlineExceeded, held, status.New(codes.DeadlineExceeded, "")},
		{"CANCELLED", fmt.Errorf("upstream: %w", context.Canceled), held, status.New(codes.Unknown, "")},
		{"declared no effect", semel.NoEffect(status.Error(codes.NotFound, "none")), freed, status.New(codes.NotFound, "none")},
		{"declared final", semel.Final(status.Error(codes.Unavailable, "shut")), recorded, status.New(codes.Unavailable, "shut")},
		{"declared indeterminate", semel.Indeterminate("cut off", status.Error(codes.Internal, "x")), held, status.New(codes.Unknown, "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(ctx context.Context, _ *structpb.Struct) (*wrapperspb.StringValue, error) {
				if err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("x-h", "1")), grpc.SetTrailer(ctx, metadata.Pairs("x-t", "1"))); err != nil {
					t.Error(err)
				}
				return nil, tt.err
			}, options{})
			one := r.call(as(t.Context(), "ann", "k"), pay, ten)
			two := r.call(as(t.Context(), "ann", "k"), pay, ten)
			if tt.what == held {
				// Its own failure, and what others find.
				wantRefusal(t, one, tt.want.Code(), "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
				wantRefusal(t, two, codes.FailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
				r.wantEffects(1)
				return
			}
			for i, a := range []answer{one, two} {
				if got := status.Convert(a.err); !proto.Equal(got.Proto(), tt.want.Proto()) {
					t.Errorf("%d: the status is %v, want %v", i, got.Proto(), tt.want.Proto())
				}
				if first(a.header.Get("x-h")) != "1" || first(a.trailer.Get("x-t")) != "1" {
					t.Errorf("%d: the metadata is %v, %v", i, a.header, a.trailer)
				}
			}
			if tt.what == recorded {
				r.wantEffects(1)
			} else {
				r.wantEffects(2)
			}
			if two.replayed() != (tt.what == recorded) {
				t.Errorf("the second is marked as a replay: %v", two.replayed())
			}
		})
	}
}

func TestConfiguredCodes(t *testing.T) {
	r := newRig(t, func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
		return nil, status.Error(codes.Aborted, "conflict")
	}, options{config: semelgrpc.Config{NoEffect: func(c codes.Code) bool { return c == codes.Aborted }}})
	for range 2 {
		if a := r.call(as(t.Context(), "ann", "k"), pay, ten); status.Convert(a.err).Message() != "conflict" {
			t.Error(a.err)
		}
	}
	r.wantEffects(2)

	r = newRig(t, func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
		return nil, errors.New("who knows")
	}, options{config: semelgrpc.Config{Indeterminate: func(c codes.Code) bool { return c == codes.Unknown }}})
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.Unknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
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

// scripted is a store that says of a claim what the test wants.
type scripted struct {
	*memory.Store
	begin func(semel.Attempt) error     // nil grants
	claim func(semel.Claim) semel.Claim // of a claim that was granted
}

func (s scripted) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if s.begin != nil {
		return nil, s.begin(a)
	}
	c, err := s.Store.Begin(ctx, a)
	if err == nil && s.claim != nil {
		c = s.claim(c)
	}
	return c, err
}

type rolledBack struct{ semel.Claim }

func (rolledBack) Complete(context.Context, semel.Result) (time.Time, error) {
	return time.Time{}, semel.ErrRolledBack
}

type unheld struct{ semel.Claim }

func (unheld) Hold(context.Context, string) error { return errors.New("down") }

// found is a Begin that meets a record.
func found(change func(*semel.Record)) func(semel.Attempt) error {
	return func(a semel.Attempt) error {
		r := semel.Record{ID: semel.NewRecordID(), Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateInProgress, Lease: time.Minute}
		change(&r)
		return &semel.ConflictError{Record: r}
	}
}

// TestAdvice: what each answer of the guard is on the wire, and what the client
// is advised to do.
func TestAdvice(t *testing.T) {
	down := func(semel.Attempt) error { return errors.New("down") }
	fails := func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
		return nil, status.Error(codes.Unavailable, "upstream")
	}
	base, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		handler handler
		store   scripted
		key     []string
		code    codes.Code
		reason  string
		retry   semel.RetryAdvice
		after   bool
		effects int64
	}{
		{"executed", paid, scripted{}, []string{"k1"}, codes.OK, "", "", false, 1},
		{"released", paid, scripted{claim: func(c semel.Claim) semel.Claim { return rolledBack{c} }}, []string{"k2"}, codes.Unavailable, "ROLLED_BACK", semel.RetrySameKey, true, 1},
		{"in progress", paid, scripted{begin: found(func(*semel.Record) {})}, []string{"k3"}, codes.Aborted, "IN_PROGRESS", semel.RetrySameKey, true, 0},
		{"mismatch", paid, scripted{begin: found(func(r *semel.Record) { r.Fingerprint.Sum[0]++ })}, []string{"k4"}, codes.InvalidArgument, "KEY_MISMATCH", semel.RetryNo, false, 0},
		{"unknown, found", paid, scripted{begin: found(func(r *semel.Record) { r.State = semel.StateUnknown })}, []string{"k5"}, codes.FailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 0},
		{"unknown, its own", fails, scripted{}, []string{"k6"}, codes.Unknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 1},
		{"replayed, but not retained", paid, scripted{begin: found(func(r *semel.Record) { r.State, r.Result.Tombstone = semel.StateCompleted, true })}, []string{"k7"}, codes.FailedPrecondition, "RESULT_NOT_RETAINED", semel.RetryNo, false, 0},
		{"rejected, no key", paid, scripted{}, nil, codes.InvalidArgument, "KEY_MISSING", semel.RetryNewKey, false, 0},
		{"rejected, malformed", paid, scripted{}, []string{"a,b"}, codes.InvalidArgument, "KEY_MALFORMED", semel.RetryNewKey, false, 0},
		{"unavailable", paid, scripted{begin: down}, []string{"k8"}, codes.Unavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 0},
		{"unavailable for its own hold", fails, scripted{claim: func(c semel.Claim) semel.Claim { return unheld{c} }}, []string{"k9"}, codes.Unavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.store.Store = base
			r := newRig(t, tt.handler, options{store: tt.store, policy: semel.Policy{Lease: 50 * time.Millisecond}, config: semelgrpc.Config{RequireKey: true}})
			a := r.call(as(t.Context(), "ann", tt.key...), pay, ten)
			if tt.code != codes.OK {
				wantRefusal(t, a, tt.code, tt.reason, tt.retry, tt.after)
			} else if a.err != nil {
				t.Error(a.err)
			}
			r.wantEffects(tt.effects)
		})
	}
}

func TestScopeErrors(t *testing.T) {
	refuse := errors.New("a secret reason")
	r := newRig(t, paid, options{config: semelgrpc.Config{Scope: func(context.Context, string, proto.Message) (semel.Scope, error) {
		return semel.Scope{}, refuse
	}}})
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.Unauthenticated, "SCOPE_REFUSED", semel.RetrySameKey, false)
	refuse = status.Error(codes.PermissionDenied, "not yours")
	if a := r.call(as(t.Context(), "ann", "k"), pay, ten); status.Code(a.err) != codes.PermissionDenied {
		t.Error(a.err)
	}
	r.wantEffects(0)

	r = newRig(t, paid, options{config: semelgrpc.Config{Scope: func(context.Context, string, proto.Message) (semel.Scope, error) {
		return semel.Scope{Operation: "two\nlines"}, nil
	}}})
	wantRefusal(t, r.call(as(t.Context(), "ann", "k"), pay, ten), codes.Internal, "SCOPE_INVALID", semel.RetryNo, false)
	r.wantEffects(0)
}

// TestClientKeepsKey: gRPC's own retries of one call carry one key; two calls
// carry two.
func TestClientKeepsKey(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{
		dial: []grpc.DialOption{
			grpc.WithUnaryInterceptor(semelgrpc.UnaryClient),
			grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3,
				"initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`),
		},
		front: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			keys = append(keys, metadata.ValueFromIncomingContext(ctx, semelgrpc.MetadataKey)...)
			if len(keys)%2 == 1 {
				return nil, status.Error(codes.Unavailable, "come again")
			}
			return next(ctx, req)
		}},
	})
	for range 2 {
		if a := r.call(as(t.Context(), "ann"), pay, ten); a.err != nil || a.replayed() {
			t.Errorf("the answer is %+v", a)
		}
	}
	r.wantEffects(2)
	if len(keys) != 4 || keys[0] != keys[1] || keys[2] != keys[3] || keys[0] == keys[2] {
		t.Errorf("the keys on the wire are %q", keys)
	}
	r.call(semelclient.WithKey(as(t.Context(), "ann"), `my "own" key`), pay, ten)
	if want := `"my \"own\" key"`; keys[4] != want || keys[5] != want {
		t.Errorf("the keys on the wire are %q, want %s", keys[4:], want)
	}
	if a := r.call(semelclient.WithKey(as(t.Context(), "ann"), "ä"), pay, ten); status.Code(a.err) != codes.Internal || !errors.Is(a.err, semel.ErrNoEffect) || len(keys) != 6 {
		t.Errorf("a key that cannot be sent: %v", a.err)
	}
}

// TestFreshKeyInsideAnExecution: an operation that is executed again makes its
// calls under the same keys, and one that is not named is not made.
func TestFreshKeyInsideAnExecution(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{
		dial: []grpc.DialOption{grpc.WithUnaryInterceptor(semelgrpc.UnaryClient)},
		front: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			keys = append(keys, first(metadata.ValueFromIncomingContext(ctx, semelgrpc.MetadataKey)))
			return next(ctx, req)
		}},
	})
	guard, err := r.guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	if err != nil {
		t.Fatal(err)
	}
	submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"}}
	for range 2 {
		_, err := guard.Do(semelclient.WithKey(t.Context(), "outer"), submit, func(ctx context.Context) (semel.Result, error) {
			// The key of the whole is not that of its parts.
			a := r.call(as(ctx, "ann"), pay, ten)
			if !errors.Is(a.err, semelclient.ErrNoStep) || !errors.Is(a.err, semel.ErrNoEffect) || status.Code(a.err) != codes.Internal {
				t.Errorf("a call without a step: %v", a.err)
			}
			r.call(as(ctx, "ann"), get, ten)
			for _, step := range []string{"charge", "mail"} {
				step, err := semelclient.WithStep(as(ctx, "ann"), step)
				if err != nil {
					return semel.Result{}, err
				}
				for range 2 {
					if a := r.call(step, pay, ten); a.err != nil {
						t.Error(a.err)
					}
				}
			}
			r.call(as(ctx, "ann", "mine"), pay, ten)
			return semel.Result{}, errors.New("cannot tell")
		})
		if !errors.Is(err, semel.ErrUnknown) {
			t.Fatal(err)
		}
	}
	charge, err1 := submit.Identity.ChildKey("charge")
	mail, err2 := submit.Identity.ChildKey("mail")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	charge, mail = strconv.Quote(charge), strconv.Quote(mail)
	want := []string{"", charge, charge, mail, mail, "mine"}
	if !slices.Equal(keys, slices.Concat(want, want)) {
		t.Errorf("the keys on the wire are %q, want %q twice", keys, want)
	}
	r.wantEffects(5) // charge, mail and mine once, a read in each execution
}

// TestHalfAnEffectCommitted: over a store whose claims are transactions, a
// handler that fails after it has changed something has changed nothing.
func TestHalfAnEffectCommitted(t *testing.T) {
	detailed, err := status.New(codes.NotFound, "no such account").WithDetails(protoadapt.MessageV1Of(wrapperspb.String(strings.Repeat("x", 2000))))
	if err != nil {
		t.Fatal(err)
	}
	keep := semelgrpc.Config{Release: func(codes.Code) bool { return false }}
	for _, tt := range []struct {
		name   string
		err    error
		config semelgrpc.Config
		// rows is how many payments two calls leave, effects how often they executed.
		rows, effects int64
		second        string // message
	}{
		{"OK", nil, semelgrpc.Config{}, 1, 1, ""},
		{"NOT_FOUND", status.Error(codes.NotFound, "none"), semelgrpc.Config{}, 0, 1, "none"},
		{"a tombstone of NOT_FOUND", detailed.Err(), semelgrpc.Config{MaxResult: 1000}, 0, 1, "not retained"},
		{"INTERNAL", status.Error(codes.Internal, "broke"), semelgrpc.Config{}, 0, 2, "broke"},
		{"INTERNAL, recorded", status.Error(codes.Internal, "broke"), keep, 0, 1, "broke"},
		{"UNAVAILABLE", status.Error(codes.Unavailable, "upstream"), semelgrpc.Config{}, 0, 2, "rolled back"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "payments.db")
			store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Mode: sqlite.ModeTransactional})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := store.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE payment (id INTEGER)"); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, func(ctx context.Context, _ *structpb.Struct) (*wrapperspb.StringValue, error) {
				tx, ok := sqlite.Tx(ctx)
				if !ok {
					return nil, errors.New("no transaction")
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO payment VALUES (1)"); err != nil {
					return nil, err
				}
				return wrapperspb.String("paid"), tt.err
			}, options{store: store, config: tt.config})
			r.call(as(t.Context(), "ann", "k"), pay, ten)
			a := r.call(as(t.Context(), "ann", "k"), pay, ten)
			if !strings.Contains(status.Convert(a.err).Message(), tt.second) {
				t.Errorf("the second call is told %v, want %q", a.err, tt.second)
			}
			if a.replayed() != (tt.effects == 1 && tt.second != "not retained") {
				t.Errorf("the second is marked as a replay: %v", a.replayed())
			}
			var rows int64
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM payment").Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if rows != tt.rows {
				t.Errorf("%d payments, want %d", rows, tt.rows)
			}
			r.wantEffects(tt.effects)
		})
	}
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
