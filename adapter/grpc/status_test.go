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
	"github.com/semelhq/semel/store/memory"
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
