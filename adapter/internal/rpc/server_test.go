package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// store is a store/memory whose claims can be watched and changed.
type store struct {
	*memory.Store
	claim func(semel.Claim) semel.Claim
}

func (s store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return s.claim(c), nil
}

func newServer(t *testing.T, s *Server, claim func(semel.Claim) semel.Claim) *Server {
	t.Helper()
	base, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Guard, err = semel.New(semel.Config{Store: store{base, claim}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// call has the handler of one key return r.
func (s *Server) call(t *testing.T, r Reply) Reply {
	t.Helper()
	return s.Do(t.Context(), Call{Procedure: "/p/M", Key: "k", Request: wrapperspb.String("x")}, func(context.Context) Reply { return r })
}

func failure(code Code) Reply {
	s := &spb.Status{Code: int32(code), Message: "failed"}
	return Reply{Status: s, Err: errors.New("failed")}
}

type refusal struct {
	code    Code
	reason  string
	retry   semel.RetryAdvice
	after   time.Duration
	message string
}

func refusalOf(t *testing.T, r Reply) refusal {
	t.Helper()
	got := refusal{code: Code(r.Status.GetCode()), message: r.Status.GetMessage()}
	for _, d := range r.Status.GetDetails() {
		m, err := d.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			got.reason, got.retry = m.GetReason(), semel.RetryAdvice(m.GetMetadata()["retry"])
		case *errdetails.RetryInfo:
			got.after = m.GetRetryDelay().AsDuration()
		}
	}
	return got
}

// TestAnswers: what a call is told for each answer of the guard, in its own
// execution and in that of another.
func TestAnswers(t *testing.T) {
	s := newServer(t, &Server{}, nil)
	late, broke := failure(DeadlineExceeded), failure(Unavailable)
	tests := []struct {
		name    string
		answer  semel.Answer
		claimed bool
		mine    *Reply
		cause   error
		want    refusal // the message is a part of it
	}{
		{"released", semel.AnswerReleased, true, nil, semel.ErrRolledBack, refusal{Unavailable, "ROLLED_BACK", semel.RetrySameKey, time.Second, "certainly had no effect"}},
		{"in progress", semel.AnswerInProgress, false, nil, nil, refusal{Aborted, "IN_PROGRESS", semel.RetrySameKey, time.Second, "still running"}},
		{"taken over", semel.AnswerInProgress, true, nil, semel.ErrLostClaim, refusal{Aborted, "IN_PROGRESS", semel.RetrySameKey, time.Second, "still running"}},
		{"mismatch", semel.AnswerMismatch, false, nil, nil, refusal{InvalidArgument, "KEY_MISMATCH", semel.RetryNo, 0, "This request was not executed"}},
		{"found unknown", semel.AnswerUnknown, false, nil, nil, refusal{FailedPrecondition, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, 0, "Keep the key"}},
		{"own panic", semel.AnswerUnknown, true, nil, &semel.PanicError{}, refusal{Unknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, 0, "was cut off"}},
		{"own broken connection", semel.AnswerUnknown, true, &broke, nil, refusal{Unknown, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, 0, "was cut off"}},
		{"own time-out", semel.AnswerUnknown, true, &late, nil, refusal{DeadlineExceeded, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, 0, "ran out of time"}},
		{"own deadline", semel.AnswerUnknown, true, nil, semel.ErrDeadline, refusal{DeadlineExceeded, "OUTCOME_UNKNOWN", semel.RetryAfterResolution, 0, "ran out of time"}},
		{"rejected", semel.AnswerRejected, false, nil, nil, refusal{Internal, "SCOPE_INVALID", semel.RetryNo, 0, "Nothing was executed"}},
		{"unavailable", semel.AnswerUnavailable, false, nil, errors.New("down"), refusal{Unavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, time.Second, "so it was not executed"}},
		{"busy", semel.AnswerUnavailable, false, nil, &semel.BusyError{}, refusal{Unavailable, "BUSY", semel.RetrySameKey, time.Second, "Nothing was executed"}},
		{"could not write its own hold", semel.AnswerUnavailable, true, nil, errors.New("down"), refusal{Unavailable, "STORE_UNAVAILABLE", semel.RetrySameKey, time.Second, "may have taken effect"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := semel.Outcome{Answer: tt.answer, Claimed: tt.claimed}
			got := refusalOf(t, s.answer(t.Context(), out, &semel.Error{Answer: tt.answer, Err: tt.cause}, tt.mine))
			if !strings.Contains(got.message, tt.want.message) {
				t.Errorf("the message is %q, which does not say %q", got.message, tt.want.message)
			}
			if tt.claimed && tt.answer != semel.AnswerReleased && (strings.Contains(got.message, "not executed.") || strings.Contains(got.message, "Nothing was")) {
				t.Errorf("%q says of an execution that there was none", got.message)
			}
			got.message, tt.want.message = "", ""
			if got != tt.want {
				t.Errorf("told %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestNextSubmitSettles: where the policy has the next submit settle an unknown
// outcome, the advice is not to wait for somebody.
func TestNextSubmitSettles(t *testing.T) {
	s := newServer(t, &Server{}, func(c semel.Claim) semel.Claim { return c })
	var err error
	if s.Guard, err = s.Guard.With(semel.Policy{OnCrash: semel.CrashRetry}); err != nil {
		t.Fatal(err)
	}
	got := refusalOf(t, s.call(t, failure(Unavailable)))
	if got.code != Unknown || got.retry != semel.RetrySameKey || got.after != s.Guard.Policy().Heartbeat || !strings.Contains(got.message, "same key again") {
		t.Errorf("told %+v", got)
	}
}

// watched is a claim that tells how it was settled. Where it is to be a
// transaction it rolls back, like one, what is held.
type watched struct {
	semel.Claim
	transactional bool
	small         bool // takes no body
	settled       *string
}

func (c watched) Transactional() bool { return c.transactional }

func (c watched) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	if c.small && !r.Tombstone {
		return time.Time{}, semel.ErrTooLarge
	}
	*c.settled = "committed"
	if r.Failed {
		*c.settled = "failed"
	}
	if r.Tombstone {
		*c.settled += ", tombstone"
	}
	return c.Claim.Complete(ctx, r)
}

func (c watched) Release(ctx context.Context) error {
	*c.settled = "released"
	return c.Claim.Release(ctx)
}

func (c watched) Hold(ctx context.Context, cause string) error {
	if *c.settled = "held"; c.transactional {
		return errors.Join(c.Claim.Release(ctx), semel.ErrRolledBack)
	}
	return c.Claim.Hold(ctx, cause)
}

// TestHalfAnEffectCommitted: a store that is not told of a failure commits what
// its handler did before it. And of one that was rolled back nothing is left, so
// its key must not be either, unless the configuration says so.
func TestHalfAnEffectCommitted(t *testing.T) {
	type settled struct{ leased, transactional string }
	both := func(s string) settled { return settled{s, s} }
	final := func(code Code) Reply {
		r := failure(code)
		r.Err = semel.Final(r.Err)
		return r
	}
	long := failure(NotFound)
	long.Status.Message = strings.Repeat("x", 2000)
	tests := []struct {
		name  string
		reply Reply
		small bool
		want  settled
	}{
		{"OK", Reply{Message: wrapperspb.String("x")}, false, both("committed")},
		{"OK, too large", Reply{Message: wrapperspb.String(long.Status.Message)}, false, both("committed, tombstone")},
		{"OK, too large for the store", Reply{Message: wrapperspb.String("x")}, true, both("committed, tombstone")},
		{"too large", long, false, both("failed, tombstone")},
		{"too large for the store", failure(NotFound), true, both("failed, tombstone")},
		{"declared final", final(Internal), false, both("failed")},
		{"CANCELLED", failure(Canceled), false, both("held")},
		{"UNKNOWN", failure(Unknown), false, settled{"failed", "released"}},
		{"INVALID_ARGUMENT", failure(InvalidArgument), false, both("failed")},
		{"DEADLINE_EXCEEDED", failure(DeadlineExceeded), false, both("held")},
		{"NOT_FOUND", failure(NotFound), false, both("failed")},
		{"ALREADY_EXISTS", failure(AlreadyExists), false, both("failed")},
		{"PERMISSION_DENIED", failure(PermissionDenied), false, both("failed")},
		{"RESOURCE_EXHAUSTED", failure(ResourceExhausted), false, both("released")},
		{"FAILED_PRECONDITION", failure(FailedPrecondition), false, both("failed")},
		{"ABORTED", failure(Aborted), false, both("failed")},
		{"OUT_OF_RANGE", failure(OutOfRange), false, both("failed")},
		{"UNIMPLEMENTED", failure(Unimplemented), false, settled{"failed", "released"}},
		{"INTERNAL", failure(Internal), false, settled{"failed", "released"}},
		{"UNAVAILABLE", failure(Unavailable), false, both("held")},
		{"DATA_LOSS", failure(15), false, settled{"failed", "released"}},
		{"UNAUTHENTICATED", failure(Unauthenticated), false, both("released")},
		{"a code that there is not", failure(99), false, settled{"failed", "released"}},
	}
	for _, tt := range tests {
		for _, transactional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s transactional=%v", tt.name, transactional), func(t *testing.T) {
				want, got := tt.want.leased, ""
				if transactional {
					want = tt.want.transactional
				}
				s := newServer(t, &Server{MaxResult: 1000}, func(c semel.Claim) semel.Claim {
					return watched{c, transactional, tt.small, &got}
				})
				reply := s.call(t, tt.reply)
				if got != want {
					t.Errorf("the claim was %s, want %s", got, want)
				}
				switch {
				case want == "held" && transactional:
					if got := refusalOf(t, reply); got.reason != "ROLLED_BACK" {
						t.Errorf("told %+v", got)
					}
				case want == "held":
					if got := refusalOf(t, reply); got.reason != "OUTCOME_UNKNOWN" {
						t.Errorf("told %+v", got)
					}
				default:
					if reply.Status != tt.reply.Status || reply.Message != tt.reply.Message {
						t.Errorf("the call that executed got %v %v", reply.Status, reply.Message)
					}
				}
			})
		}
	}

	got := ""
	s := newServer(t, &Server{Release: func(c Code) bool { return c != Internal }}, func(c semel.Claim) semel.Claim {
		return watched{c, true, false, &got}
	})
	s.call(t, failure(Internal))
	if got != "failed" {
		t.Errorf("the claim was %s, though the configuration says that INTERNAL is recorded", got)
	}
}

// pieced hands a record's body over in pieces, and breaks them if told to.
type pieced struct {
	*memory.Store
	broken *bool
}

func (s pieced) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if conflict, ok := errors.AsType[*semel.ConflictError](err); ok {
		if r := &conflict.Record.Result; len(r.Body) > semel.PieceBytes {
			whole := pieces(r.Body)
			r.Body, r.Pieces = nil, &semel.Pieces{Size: whole.Size, Read: func(ctx context.Context, n int) ([]byte, error) {
				if *s.broken && n == 2 {
					return nil, errors.New("broken")
				}
				return whole.Read(ctx, n)
			}}
		}
	}
	return c, err
}

// TestLargeReplies: a reply over the size of a piece is recorded in pieces, up to
// the bound and no further.
func TestLargeReplies(t *testing.T) {
	var broken bool
	base, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: pieced{base, &broken}})
	if err != nil {
		t.Fatal(err)
	}
	const limit = 2 << 20
	s := &Server{Guard: guard, MaxResult: limit}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	exact := func(size int) Reply { // that is recorded in size bytes
		for n := 0; ; {
			r := Reply{Message: wrapperspb.String(strings.Repeat("x", n)), Header: map[string][]string{"a": {"b"}}}
			res, err := encode(r, 1<<30)
			if err != nil || n < 0 || n > size {
				t.Fatalf("no reply of %d bytes: %v", size, err)
			}
			missing := size - len(res.Head) - int(res.Size())
			if missing == 0 {
				return r
			}
			n += missing
		}
	}
	for _, tt := range []struct {
		size             int
		pieces, retained bool
	}{
		{100, false, true}, {inline, false, true}, {inline + 1, true, true}, {limit, true, true}, {limit + 1, false, false},
	} {
		t.Run(fmt.Sprint(tt.size), func(t *testing.T) {
			r := exact(tt.size)
			res, err := encode(r, limit)
			if err != nil {
				t.Fatal(err)
			}
			if (res.Pieces != nil) != tt.pieces || res.Tombstone == tt.retained {
				t.Errorf("in pieces: %v, tombstone: %v", res.Pieces != nil, res.Tombstone)
			}
			call := Call{Procedure: "/p/M", Key: fmt.Sprint(tt.size), Request: wrapperspb.String("x")}
			do := func() Reply {
				return s.Do(t.Context(), call, func(context.Context) Reply { return r })
			}
			if got := do(); got.Message != r.Message {
				t.Errorf("the call that executed got %v", got.Status)
			}
			again := do()
			if !tt.retained {
				if got := refusalOf(t, again); got.reason != "RESULT_NOT_RETAINED" || got.retry != semel.RetryNo {
					t.Errorf("told %+v", got)
				}
				return
			}
			if !proto.Equal(again.Message, r.Message) || again.Header[MetadataReplayed] == nil || again.Header["a"] == nil {
				t.Errorf("the replay is %v, %v", again.Header, again.Status)
			}
		})
	}

	// What is there but cannot be read is neither gone nor to be executed again.
	broken = true
	got := refusalOf(t, s.Do(t.Context(), Call{Procedure: "/p/M", Key: fmt.Sprint(limit), Request: wrapperspb.String("x")}, func(context.Context) Reply {
		t.Error("executed again")
		return Reply{}
	}))
	if got.code != Unavailable || got.retry != semel.RetrySameKey || got.after != time.Second {
		t.Errorf("told %+v", got)
	}
}

// TestLargeMetadata: metadata cannot be recorded in pieces.
func TestLargeMetadata(t *testing.T) {
	r := Reply{Message: wrapperspb.String("x"), Header: map[string][]string{"a": {strings.Repeat("x", inline)}}}
	if res, err := encode(r, 32<<20); err != nil || !res.Tombstone || res.Head != nil {
		t.Errorf("%v, tombstone %v with %d bytes", err, res.Tombstone, len(res.Head))
	}
}

func TestPieces(t *testing.T) {
	body := bytes.Repeat([]byte("ab"), semel.PieceBytes)[:semel.PieceBytes*3/2]
	p := pieces(body)
	whole, err := wholeBody(t.Context(), semel.Result{Pieces: p}, time.Minute)
	if err != nil || !bytes.Equal(whole, body) {
		t.Errorf("%d of %d bytes, %v", len(whole), len(body), err)
	}
	for _, n := range []int{-1, 2} {
		if _, err := p.Read(t.Context(), n); err == nil {
			t.Errorf("there is a piece %d", n)
		}
	}
}
