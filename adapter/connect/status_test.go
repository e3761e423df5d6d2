package semelconnect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/semelhq/semel"
	semelconnect "github.com/semelhq/semel/adapter/connect"
	"github.com/semelhq/semel/adapter/internal/rpc/rpctest"
)

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

// TestAdvice: what each answer of the guard is on the wire, and what the client
// is advised to do.
func TestAdvice(t *testing.T) {
	fails := func(context.Context, *request) (*response, error) {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("upstream"))
	}
	for _, tt := range rpctest.Advices(t) {
		t.Run(tt.Name, func(t *testing.T) {
			h := handler(paid)
			if tt.Fails {
				h = fails
			}
			r := newRig(t, h, options{store: tt.Store, policy: semel.Policy{Lease: 50 * time.Millisecond}, config: semelconnect.Config{RequireKey: true}})
			a := r.pay("ann", ten, tt.Key...)
			if tt.Reason != "" {
				wantRefusal(t, a, connect.Code(tt.Code), tt.Reason, tt.Retry, tt.After) //nolint:gosec // the numbers are the protocol's
			} else if a.err != nil {
				t.Error(a.err)
			}
			r.wantEffects(tt.Effects)
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
