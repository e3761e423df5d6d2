package semelconnect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelconnect "github.com/semelhq/semel/adapter/connect"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

const (
	pay   = "/semel.test.Payments/Pay"
	get   = "/semel.test.Payments/Get"
	watch = "/semel.test.Payments/Watch"
)

type (
	request  = connect.Request[structpb.Struct]
	response = connect.Response[wrapperspb.StringValue]
	client   = connect.Client[structpb.Struct, wrapperspb.StringValue]
	handler  func(context.Context, *request) (*response, error)
)

type rig struct {
	t      *testing.T
	server *httptest.Server
	guard  *semel.Guard
	store  *memory.Store
	// effects counts calls of handlers.
	effects atomic.Int64
}

type options struct {
	config semelconnect.Config
	store  semel.Store // nil for a store/memory
	policy semel.Policy
	front  []connect.Interceptor
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
		o.config.Scope = func(_ context.Context, req connect.AnyRequest) (semel.Scope, error) {
			return semel.Scope{Actor: req.Header().Get("User")}, nil
		}
	}
	once, err := semelconnect.New(o.config)
	if err != nil {
		t.Fatal(err)
	}
	with := connect.WithInterceptors(append(o.front, once)...)
	counted := func(ctx context.Context, req *request) (*response, error) {
		r.effects.Add(1)
		return h(ctx, req)
	}
	mux := http.NewServeMux()
	mux.Handle(pay, connect.NewUnaryHandler(pay, counted, with))
	mux.Handle(get, connect.NewUnaryHandler(get, counted, with, connect.WithIdempotency(connect.IdempotencyNoSideEffects)))
	mux.Handle(watch, connect.NewServerStreamHandler(watch, func(context.Context, *request, *connect.ServerStream[wrapperspb.StringValue]) error {
		r.effects.Add(1)
		return nil
	}, with))
	r.server = httptest.NewUnstartedServer(mux)
	r.server.EnableHTTP2 = true
	r.server.StartTLS()
	t.Cleanup(r.server.Close)
	return r
}

var protocols = map[string][]connect.ClientOption{
	"connect":  nil,
	"json":     {connect.WithProtoJSON()},
	"grpc":     {connect.WithGRPC()},
	"grpc-web": {connect.WithGRPCWeb()},
}

func (r *rig) client(procedure string, options ...connect.ClientOption) *client {
	return connect.NewClient[structpb.Struct, wrapperspb.StringValue](r.server.Client(), r.server.URL+procedure, options...)
}

func newRequest(t *testing.T, user string, fields map[string]any, keys ...string) *request {
	t.Helper()
	message, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	req := connect.NewRequest(message)
	req.Header().Set("User", user)
	for _, k := range keys {
		req.Header().Add(semelhttp.HeaderKey, k)
	}
	return req
}

type answer struct {
	text string
	err  *connect.Error
	// header holds the trailer too where err is set.
	header, trailer http.Header
}

func (a answer) replayed() bool { return a.header.Get(semelhttp.HeaderReplayed) == "true" }

func (r *rig) call(c *client, req *request) answer {
	r.t.Helper()
	resp, err := c.CallUnary(r.t.Context(), req)
	if err != nil {
		var ce *connect.Error
		if !errors.As(err, &ce) {
			r.t.Fatal(err)
		}
		return answer{err: ce, header: ce.Meta()}
	}
	return answer{text: resp.Msg.GetValue(), header: resp.Header(), trailer: resp.Trailer()}
}

func (r *rig) pay(user string, fields map[string]any, keys ...string) answer {
	r.t.Helper()
	return r.call(r.client(pay), newRequest(r.t, user, fields, keys...))
}

func (r *rig) wantEffects(n int64) {
	r.t.Helper()
	if got := r.effects.Load(); got != n {
		r.t.Errorf("%d effects, want %d", got, n)
	}
}

// wantRefusal checks a refusal, its advice and its RetryInfo.
func wantRefusal(t *testing.T, a answer, code connect.Code, reason string, retry semel.RetryAdvice, after bool) {
	t.Helper()
	if a.err == nil {
		t.Errorf("the answer is %+v, want %v %s", a, code, reason)
		return
	}
	var info *errdetails.ErrorInfo
	var delay *errdetails.RetryInfo
	for _, d := range a.err.Details() {
		v, err := d.Value()
		if err != nil {
			t.Error(err)
		}
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			info = v
		case *errdetails.RetryInfo:
			delay = v
		}
	}
	if a.err.Code() != code || info.GetReason() != reason || info.GetDomain() != semelconnect.Domain || info.GetMetadata()["retry"] != string(retry) {
		t.Errorf("refused with %v %v, want %v %s %s", a.err, info, code, reason, retry)
	}
	if (delay.GetRetryDelay().AsDuration() > 0) != after {
		t.Errorf("the delay before a retry is %v, want one: %v", delay, after)
	}
	if a.replayed() {
		t.Error("a refusal is marked as a replay")
	}
}

var ten = map[string]any{"amount": 10.0, "to": "bob", "note": map[string]any{"a": "1", "b": "2", "c": "3"}}

func paid(context.Context, *request) (*response, error) {
	return connect.NewResponse(wrapperspb.String("paid")), nil
}

// TestReplay: whichever protocol asks, first or again, the reply is the same.
func TestReplay(t *testing.T) {
	for first, with := range protocols {
		t.Run(first, func(t *testing.T) {
			r := newRig(t, func(ctx context.Context, req *request) (*response, error) {
				if _, ok := semel.CurrentExecution(ctx); ok != (len(req.Header()[semelhttp.HeaderKey]) > 0) {
					return nil, errors.New("not the execution's context")
				}
				info, ok := connect.CallInfoForHandlerContext(ctx)
				if !ok || info.Spec().Procedure != pay {
					return nil, errors.New("no CallInfo")
				}
				info.ResponseHeader().Set("X-Info", "h")
				info.ResponseTrailer().Set("X-Info-Sum", "t")
				resp := connect.NewResponse(wrapperspb.String("paid " + req.Msg.Fields["to"].GetStringValue()))
				resp.Header().Add("X-Order", "7")
				resp.Header().Add("X-Order", "8")
				resp.Trailer().Set("X-Sum", "1")
				return resp, nil
			}, options{})
			check := func(a answer, replayed bool) {
				t.Helper()
				if a.err != nil || a.text != "paid bob" || a.replayed() != replayed {
					t.Errorf("the answer is %+v, replayed %v", a, a.replayed())
				}
				if got := a.header.Values("X-Order"); !slices.Equal(got, []string{"7", "8"}) {
					t.Errorf("X-Order is %q", got)
				}
				if a.header.Get("X-Info") != "h" || !slices.Equal(a.trailer.Values("X-Sum"), []string{"1"}) || a.trailer.Get("X-Info-Sum") != "t" {
					t.Errorf("the header is %v, the trailer %v", a.header, a.trailer)
				}
				if _, err := http.ParseTime(a.header.Get(semelhttp.HeaderExpires)); err != nil {
					t.Error(err)
				}
			}
			check(r.call(r.client(pay, with...), newRequest(t, "ann", ten, "k")), false)
			for _, with := range protocols {
				c := r.client(pay, with...)
				check(r.call(c, newRequest(t, "ann", ten, `"k"`)), true)
				wantRefusal(t, r.call(c, newRequest(t, "ann", nil, "k")), connect.CodeInvalidArgument, "KEY_MISMATCH", semel.RetryNo, false)
				wantRefusal(t, r.call(c, newRequest(t, "ann", ten, "a,b")), connect.CodeInvalidArgument, "KEY_MALFORMED", semel.RetryNewKey, false)
			}
			r.wantEffects(1)
			if a := r.pay("eve", ten, "k"); a.err != nil || a.replayed() {
				t.Errorf("another actor's answer is %+v", a)
			}
			for range 2 {
				if a := r.pay("ann", ten); a.err != nil || a.replayed() {
					t.Errorf("without a key the answer is %+v", a)
				}
			}
			r.wantEffects(4)
		})
	}
}

func TestRequireKey(t *testing.T) {
	r := newRig(t, paid, options{config: semelconnect.Config{RequireKey: true}})
	wantRefusal(t, r.pay("ann", ten), connect.CodeInvalidArgument, "KEY_MISSING", semel.RetryNewKey, false)
	r.wantEffects(0)
	for _, c := range []*client{
		r.client(get),
		r.client(get, connect.WithIdempotency(connect.IdempotencyNoSideEffects), connect.WithHTTPGet()),
	} {
		for range 2 {
			if a := r.call(c, newRequest(t, "ann", ten, "k")); a.err != nil || a.replayed() {
				t.Errorf("the answer is %+v", a)
			}
		}
	}
	r.wantEffects(4) // a method without side effects passes
}

// TestRace: of many calls at once one executes, the others are told to come
// back.
func TestRace(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(context.Context, *request) (*response, error) {
		close(entered)
		<-proceed
		return connect.NewResponse(wrapperspb.String("paid")), nil
	}, options{})
	var winner answer
	var calls sync.WaitGroup
	calls.Go(func() { winner = r.pay("ann", ten, "k") })
	<-entered
	var losers sync.WaitGroup
	for range 50 {
		losers.Go(func() {
			wantRefusal(t, r.pay("ann", ten, "k"), connect.CodeAborted, "IN_PROGRESS", semel.RetrySameKey, true)
			wantRefusal(t, r.pay("ann", nil, "k"), connect.CodeInvalidArgument, "KEY_MISMATCH", semel.RetryNo, false)
		})
	}
	losers.Wait()
	close(proceed)
	calls.Wait()
	if winner.err != nil || winner.text != "paid" {
		t.Errorf("the winner's answer is %+v", winner)
	}
	if a := r.pay("ann", ten, "k"); !a.replayed() || a.text != "paid" {
		t.Errorf("the replay is %+v", a)
	}
	r.wantEffects(1)
}

func TestUnsynchronizedRace(t *testing.T) {
	r := newRig(t, paid, options{config: semelconnect.Config{Wait: time.Minute}, policy: semel.Policy{MaxWaiters: 100}})
	var replayed atomic.Int64
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			a := r.pay("ann", ten, "k")
			if a.err != nil || a.text != "paid" {
				t.Errorf("the answer is %+v", a)
			}
			if a.replayed() {
				replayed.Add(1)
			}
		})
	}
	calls.Wait()
	r.wantEffects(1)
	if replayed.Load() != 99 {
		t.Errorf("%d replayed, want 99", replayed.Load())
	}
}

// TestClientGone: the handler does not depend on the client nor on its deadline,
// and what it sets late is recorded, not written to a call that is over.
func TestClientGone(t *testing.T) {
	type valueKey struct{}
	calls := make(chan context.Context, 1)
	entered := make(chan struct{})
	r := newRig(t, func(ctx context.Context, _ *request) (*response, error) {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		info.ResponseHeader().Set("X-Early", "1")
		close(entered)
		<-(<-calls).Done() // the server knows that the client has gone
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if d, ok := ctx.Deadline(); !ok || time.Until(d) < 5*time.Minute {
			return nil, fmt.Errorf("the handler's deadline is %v, that of the client", d)
		}
		if ctx.Value(valueKey{}) != "kept" {
			return nil, errors.New("the handler's context has lost the values of the call's")
		}
		info.ResponseHeader().Set("X-Late", "1")
		return connect.NewResponse(wrapperspb.String("paid")), nil
	}, options{front: []connect.Interceptor{connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			select {
			case calls <- ctx:
			default:
			}
			return next(context.WithValue(ctx, valueKey{}, "kept"), req)
		}
	})}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gone := make(chan error)
	go func() {
		_, err := r.client(pay).CallUnary(ctx, newRequest(t, "ann", ten, "k"))
		gone <- err
	}()
	<-entered
	cancel()
	if err := <-gone; connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("the client's answer is %v", err)
	}
	if err := r.guard.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := newRig(t, paid, options{store: r.store})
	a := again.pay("ann", ten, "k")
	if a.err != nil || a.text != "paid" || !a.replayed() || a.header.Get("X-Early") != "1" || a.header.Get("X-Late") != "1" {
		t.Errorf("the replay is %+v", a)
	}
	r.wantEffects(1)
	again.wantEffects(0)
	// A guard that is drained takes nothing new.
	wantRefusal(t, r.pay("ann", ten, "k2"), connect.CodeUnavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true)
}

// TestPanic: a panic leaves the outcome unknown and reaches the recovery in front.
func TestPanic(t *testing.T) {
	r := newRig(t, func(context.Context, *request) (*response, error) { panic("half way") }, options{front: []connect.Interceptor{
		connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (_ connect.AnyResponse, err error) {
				defer func() {
					if recover() == "half way" {
						err = connect.NewError(connect.CodeInternal, errors.New("recovered"))
					}
				}()
				return next(ctx, req)
			}
		}),
	}})
	if a := r.pay("ann", ten, "k"); a.err.Message() != "recovered" {
		t.Errorf("the error is %v, not that of the recovery", a.err)
	}
	wantRefusal(t, r.pay("ann", ten, "k"), connect.CodeFailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
	r.wantEffects(1)
}

func TestStreams(t *testing.T) {
	stream := func(r *rig, keys ...string) answer {
		s, err := r.client(watch).CallServerStream(t.Context(), newRequest(t, "ann", ten, keys...))
		if err != nil {
			t.Fatal(err)
		}
		for s.Receive() {
			t.Error("the stream sends something")
		}
		var ce *connect.Error
		if err := s.Err(); err != nil && !errors.As(err, &ce) {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return answer{err: ce}
	}
	r := newRig(t, paid, options{})
	wantRefusal(t, stream(r, "k"), connect.CodeUnimplemented, "STREAM_NOT_PROTECTED", semel.RetryNo, false)
	r.wantEffects(0)
	stream(r)
	r.wantEffects(1) // nobody asked for protection

	r = newRig(t, paid, options{config: semelconnect.Config{RequireKey: true}})
	wantRefusal(t, stream(r), connect.CodeUnimplemented, "STREAM_NOT_PROTECTED", semel.RetryNo, false)
	r.wantEffects(0)

	r = newRig(t, paid, options{config: semelconnect.Config{RequireKey: true, Protects: func(s connect.Spec) bool { return s.Procedure != watch }}})
	stream(r, "k")
	r.wantEffects(1)
}

// TestTooLarge: the caller that executed gets the reply, the others are told.
func TestTooLarge(t *testing.T) {
	r := newRig(t, paid, options{config: semelconnect.Config{MaxResult: 10}})
	if a := r.pay("ann", ten, "k"); a.err != nil || a.text != "paid" {
		t.Errorf("the answer is %+v", a)
	}
	wantRefusal(t, r.pay("ann", ten, "k"), connect.CodeFailedPrecondition, "RESULT_NOT_RETAINED", semel.RetryNo, false)
	r.wantEffects(1)
}

func TestConfig(t *testing.T) {
	_, err := semelconnect.New(semelconnect.Config{MaxResult: -1, Wait: -1, KeyRules: semel.KeyRules{MinLength: -1}})
	if err == nil {
		t.Fatal("New takes an empty configuration")
	}
	for _, field := range []string{"Guard", "Scope", "MaxResult", "Wait", "key rules"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}
