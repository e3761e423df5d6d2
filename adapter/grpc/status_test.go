package semelgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelgrpc "github.com/semelhq/semel/adapter/grpc"
	"github.com/semelhq/semel/adapter/internal/rpc/rpctest"
)

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

// TestAdvice: what each answer of the guard is on the wire, and what the client
// is advised to do.
func TestAdvice(t *testing.T) {
	fails := func(context.Context, *structpb.Struct) (*wrapperspb.StringValue, error) {
		return nil, status.Error(codes.Unavailable, "upstream")
	}
	for _, tt := range rpctest.Advices(t) {
		t.Run(tt.Name, func(t *testing.T) {
			h := handler(paid)
			if tt.Fails {
				h = fails
			}
			r := newRig(t, h, options{store: tt.Store, policy: semel.Policy{Lease: 50 * time.Millisecond}, config: semelgrpc.Config{RequireKey: true}})
			a := r.call(as(t.Context(), "ann", tt.Key...), pay, ten)
			if tt.Reason != "" {
				wantRefusal(t, a, codes.Code(tt.Code), tt.Reason, tt.Retry, tt.After) //nolint:gosec // the numbers are the protocol's
			} else if a.err != nil {
				t.Error(a.err)
			}
			r.wantEffects(tt.Effects)
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
