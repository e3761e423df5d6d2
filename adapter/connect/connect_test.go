package semelconnect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelconnect "github.com/semelhq/semel/adapter/connect"
	"github.com/semelhq/semel/semelclient"
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

// TestErrors: what becomes of each kind of error that a handler returns.
func TestErrors(t *testing.T) {
	detail, err := connect.NewErrorDetail(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "to"}}})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(code connect.Code, text string) *connect.Error { return connect.NewError(code, errors.New(text)) }
	detailed := plain(connect.CodeInvalidArgument, "no such account")
	detailed.AddDetail(detail)
	const (
		recorded = iota
		freed
		held
	)
	tests := []struct {
		name string
		err  error
		what int
		want *connect.Error // of the executing call; its code if held
	}{
		{"with details", detailed, recorded, detailed},
		{"internal", plain(connect.CodeInternal, "broke"), recorded, plain(connect.CodeInternal, "broke")},
		{"no code", errors.New("plain"), recorded, plain(connect.CodeUnknown, "plain")},
		{"unauthenticated", plain(connect.CodeUnauthenticated, "who"), freed, plain(connect.CodeUnauthenticated, "who")},
		{"resource_exhausted", plain(connect.CodeResourceExhausted, "slow"), freed, plain(connect.CodeResourceExhausted, "slow")},
		{"unavailable", plain(connect.CodeUnavailable, "upstream"), held, plain(connect.CodeUnknown, "")},
		{"deadline_exceeded", context.DeadlineExceeded, held, plain(connect.CodeDeadlineExceeded, "")},
		{"canceled", fmt.Errorf("upstream: %w", context.Canceled), held, plain(connect.CodeUnknown, "")},
		{"declared no effect", semel.NoEffect(plain(connect.CodeNotFound, "none")), freed, plain(connect.CodeNotFound, "none")},
		{"declared final", semel.Final(plain(connect.CodeUnavailable, "shut")), recorded, plain(connect.CodeUnavailable, "shut")},
		{"declared indeterminate", semel.Indeterminate("cut off", plain(connect.CodeInternal, "x")), held, plain(connect.CodeUnknown, "")},
	}
	for _, tt := range tests {
		for protocol, with := range protocols {
			t.Run(tt.name+" "+protocol, func(t *testing.T) {
				var front error
				r := newRig(t, func(ctx context.Context, _ *request) (*response, error) {
					info, _ := connect.CallInfoForHandlerContext(ctx)
					info.ResponseHeader().Set("X-Info", "1")
					var ce *connect.Error
					if errors.As(tt.err, &ce) {
						ce.Meta().Set("X-Meta", "1")
					}
					return nil, tt.err
				}, options{front: []connect.Interceptor{connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
					return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
						resp, err := next(ctx, req)
						if front == nil {
							front = err
						}
						return resp, err
					}
				})}})
				c := r.client(pay, with...)
				one := r.call(c, newRequest(t, "ann", ten, "k"))
				two := r.call(c, newRequest(t, "ann", ten, "k"))
				if tt.what == held {
					// Its own failure, and what others find.
					wantRefusal(t, one, tt.want.Code(), "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
					wantRefusal(t, two, connect.CodeFailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
					r.wantEffects(1)
					return
				}
				for i, a := range []answer{one, two} {
					if a.err == nil || a.err.Code() != tt.want.Code() || a.err.Message() != tt.want.Message() || len(a.err.Details()) != len(tt.want.Details()) {
						t.Errorf("%d: the error is %v, want %v", i, a.err, tt.want)
						continue
					}
					for n, d := range tt.want.Details() {
						want, err1 := d.Value()
						got, err2 := a.err.Details()[n].Value()
						if err1 != nil || err2 != nil || !proto.Equal(want, got) {
							t.Errorf("%d: the detail is %v, %v, want %v", i, got, err2, want)
						}
					}
					var ce *connect.Error
					if !slices.Equal(a.header.Values("X-Info"), []string{"1"}) ||
						errors.As(tt.err, &ce) && !slices.Equal(a.header.Values("X-Meta"), []string{"1"}) {
						t.Errorf("%d: the metadata is %v", i, a.header)
					}
				}
				if inner := errors.Unwrap(tt.err); !errors.Is(front, tt.err) && !errors.Is(front, inner) {
					t.Errorf("an interceptor in front sees %v", front)
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
}

func TestConfiguredCodes(t *testing.T) {
	r := newRig(t, func(context.Context, *request) (*response, error) {
		return nil, connect.NewError(connect.CodeAborted, errors.New("conflict"))
	}, options{config: semelconnect.Config{NoEffect: func(c connect.Code) bool { return c == connect.CodeAborted }}})
	for range 2 {
		if a := r.pay("ann", ten, "k"); a.err == nil || a.err.Message() != "conflict" {
			t.Errorf("the answer is %+v", a)
		}
	}
	r.wantEffects(2)

	r = newRig(t, func(context.Context, *request) (*response, error) { return nil, errors.New("who knows") },
		options{config: semelconnect.Config{Indeterminate: func(c connect.Code) bool { return c == connect.CodeUnknown }}})
	wantRefusal(t, r.pay("ann", ten, "k"), connect.CodeUnknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false)
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
	fails := func(context.Context, *request) (*response, error) {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("upstream"))
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
		code    connect.Code
		reason  string
		retry   semel.RetryAdvice
		after   bool
		effects int64
	}{
		{"executed", paid, scripted{}, []string{"k1"}, 0, "", "", false, 1},
		{"released", paid, scripted{claim: func(c semel.Claim) semel.Claim { return rolledBack{c} }}, []string{"k2"}, connect.CodeUnavailable, "ROLLED_BACK", semel.RetrySameKey, true, 1},
		{"in progress", paid, scripted{begin: found(func(*semel.Record) {})}, []string{"k3"}, connect.CodeAborted, "IN_PROGRESS", semel.RetrySameKey, true, 0},
		{"mismatch", paid, scripted{begin: found(func(r *semel.Record) { r.Fingerprint.Sum[0]++ })}, []string{"k4"}, connect.CodeInvalidArgument, "KEY_MISMATCH", semel.RetryNo, false, 0},
		{"unknown, found", paid, scripted{begin: found(func(r *semel.Record) { r.State = semel.StateUnknown })}, []string{"k5"}, connect.CodeFailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 0},
		{"unknown, its own", fails, scripted{}, []string{"k6"}, connect.CodeUnknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, false, 1},
		{"replayed, but not retained", paid, scripted{begin: found(func(r *semel.Record) { r.State, r.Result.Tombstone = semel.StateCompleted, true })}, []string{"k7"}, connect.CodeFailedPrecondition, "RESULT_NOT_RETAINED", semel.RetryNo, false, 0},
		{"rejected, no key", paid, scripted{}, nil, connect.CodeInvalidArgument, "KEY_MISSING", semel.RetryNewKey, false, 0},
		{"rejected, malformed", paid, scripted{}, []string{"a,b"}, connect.CodeInvalidArgument, "KEY_MALFORMED", semel.RetryNewKey, false, 0},
		{"unavailable", paid, scripted{begin: down}, []string{"k8"}, connect.CodeUnavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 0},
		{"unavailable for its own hold", fails, scripted{claim: func(c semel.Claim) semel.Claim { return unheld{c} }}, []string{"k9"}, connect.CodeUnavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.store.Store = base
			r := newRig(t, tt.handler, options{store: tt.store, policy: semel.Policy{Lease: 50 * time.Millisecond}, config: semelconnect.Config{RequireKey: true}})
			a := r.pay("ann", ten, tt.key...)
			if tt.code != 0 {
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
	r := newRig(t, paid, options{config: semelconnect.Config{Scope: func(context.Context, connect.AnyRequest) (semel.Scope, error) {
		return semel.Scope{}, refuse
	}}})
	wantRefusal(t, r.pay("ann", ten, "k"), connect.CodeUnauthenticated, "SCOPE_REFUSED", semel.RetrySameKey, false)
	refuse = connect.NewError(connect.CodePermissionDenied, errors.New("not yours"))
	if a := r.pay("ann", ten, "k"); a.err.Code() != connect.CodePermissionDenied {
		t.Error(a.err)
	}
	r.wantEffects(0)
}

// TestClientKeys: each call gets a key of its own, also when the caller uses its
// request again.
func TestClientKeys(t *testing.T) {
	var keys []string
	r := newRig(t, func(_ context.Context, req *request) (*response, error) {
		keys = append(keys, req.Header()[semelhttp.HeaderKey]...)
		return paid(context.Background(), req)
	}, options{})
	c := r.client(pay, connect.WithInterceptors(semelconnect.ClientKeys()))
	req := newRequest(t, "ann", ten)
	for range 2 {
		if a := r.call(c, req); a.err != nil || a.replayed() {
			t.Errorf("the answer is %+v", a)
		}
	}
	r.call(c, newRequest(t, "ann", ten, "mine"))
	if len(keys) != 3 || keys[0] == keys[1] || keys[2] != "mine" {
		t.Errorf("the keys on the wire are %q", keys)
	}
	r.call(r.client(get, connect.WithInterceptors(semelconnect.ClientKeys()), connect.WithIdempotency(connect.IdempotencyNoSideEffects)), req)
	if len(keys) != 3 {
		t.Errorf("a call without side effects carries a key")
	}
}

// TestFreshKeyInsideAnExecution: an operation that is executed again makes its
// calls under the same keys, and one that is not named is not made.
func TestFreshKeyInsideAnExecution(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{front: []connect.Interceptor{connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			keys = append(keys, req.Header().Get(semelhttp.HeaderKey))
			return next(ctx, req)
		}
	})}})
	guard, err := r.guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	if err != nil {
		t.Fatal(err)
	}
	submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"}}
	keyed := connect.WithInterceptors(semelconnect.ClientKeys())
	for range 2 {
		_, err := guard.Do(semelclient.WithKey(t.Context(), "outer"), submit, func(ctx context.Context) (semel.Result, error) {
			// The key of the whole is not that of its parts.
			_, err := r.client(pay, keyed).CallUnary(ctx, newRequest(t, "ann", ten))
			if !errors.Is(err, semelclient.ErrNoStep) || !errors.Is(err, semel.ErrNoEffect) || connect.CodeOf(err) != connect.CodeInternal {
				t.Errorf("a call without a step: %v", err)
			}
			if _, err := r.client(get, keyed, connect.WithIdempotency(connect.IdempotencyNoSideEffects)).CallUnary(ctx, newRequest(t, "ann", ten)); err != nil {
				t.Error(err)
			}
			for _, step := range []string{"charge", "mail"} {
				step, err := semelclient.WithStep(ctx, step)
				if err != nil {
					return semel.Result{}, err
				}
				for range 2 {
					if _, err := r.client(pay, keyed).CallUnary(step, newRequest(t, "ann", ten)); err != nil {
						t.Error(err)
					}
				}
			}
			if _, err := r.client(pay, keyed).CallUnary(ctx, newRequest(t, "ann", ten, "mine")); err != nil {
				t.Error(err)
			}
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
