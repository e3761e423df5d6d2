package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// Metadata names, as gRPC writes them.
const (
	MetadataKey      = "idempotency-key"
	MetadataReplayed = "idempotency-replayed"
	MetadataExpires  = "idempotency-expires"
)

// Code is a status code. gRPC and Connect use the same numbers.
type Code uint32

// The codes that matter here.
const (
	OK                 Code = 0
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	Unauthenticated    Code = 16
)

var codeNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED",
}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("CODE(%d)", uint32(c))
}

// DefaultNoEffect: codes that mean by definition that nothing was processed.
func DefaultNoEffect(c Code) bool { return c == Unauthenticated || c == ResourceExhausted }

// DefaultIndeterminate: codes that a handler gives, or hands on from a server
// that it called, when it was cut off.
func DefaultIndeterminate(c Code) bool {
	return c == Canceled || c == DeadlineExceeded || c == Unavailable
}

// DefaultRelease: codes that tell of a failure of the server, and not that the
// request, or the state it met, stands in the way.
func DefaultRelease(c Code) bool {
	switch c {
	case InvalidArgument, NotFound, AlreadyExists, PermissionDenied, FailedPrecondition, Aborted, OutOfRange:
		return false
	}
	return true
}

// Server protects calls. All fields are set by the adapter.
type Server struct {
	Guard         *semel.Guard
	RequireKey    bool
	StrictKey     bool
	KeyRules      semel.KeyRules
	Wait          time.Duration
	MaxResult     int
	NoEffect      func(Code) bool
	Indeterminate func(Code) bool
	Release       func(Code) bool

	schemas schemas
}

// Validate completes s and reports what is wrong with it.
func (s *Server) Validate() error {
	var errs []error
	if s.Guard == nil {
		errs = append(errs, errors.New("field Guard is nil"))
	}
	if s.Wait < 0 {
		errs = append(errs, fmt.Errorf("field Wait is %v; it must not be negative", s.Wait))
	}
	if s.MaxResult < 0 {
		errs = append(errs, fmt.Errorf("field MaxResult is %d; it must not be negative", s.MaxResult))
	}
	if s.MaxResult == 0 {
		s.MaxResult = semelhttp.DefaultMaxResult
	}
	if s.NoEffect == nil {
		s.NoEffect = DefaultNoEffect
	}
	if s.Indeterminate == nil {
		s.Indeterminate = DefaultIndeterminate
	}
	if s.Release == nil {
		s.Release = DefaultRelease
	}
	if s.KeyRules.MaxUUIDAge != 0 {
		errs = append(errs, errors.New("field KeyRules.MaxUUIDAge is set; calls by RPC do not have it"))
	}
	return errors.Join(append(errs, s.KeyRules.Validate())...)
}

// Reply is what comes of a call.
type Reply struct {
	Message         proto.Message // nil in a failure
	Status          *spb.Status   // nil in a success
	Header, Trailer map[string][]string
	// Err is the handler's own error, if this call executed and failed.
	Err error
}

// Call is a call to be protected.
type Call struct {
	Procedure string // "/package.Service/Method"
	Key       string
	Scope     semel.Scope // an empty Operation means the procedure
	Origin    semel.Origin
	Request   proto.Message
}

// Key returns the key in a call's metadata. It is empty with a nil status if the
// call has none and needs none, so that it passes.
func (s *Server) Key(lines []string) (string, *spb.Status) {
	key, err := semelhttp.ParseKey(lines, s.StrictKey)
	if errors.Is(err, semelhttp.ErrKeyMissing) {
		if s.RequireKey {
			return "", problem(semelhttp.ProblemKeyMissing, semel.RetryNewKey, 0)
		}
		return "", nil
	}
	if err == nil {
		err = s.KeyRules.Check(key)
	}
	if err != nil {
		return "", keyMalformed(err)
	}
	return key, nil
}

// Stream answers for a streaming call of a protected method: nil if it passes.
func (s *Server) Stream(lines []string) *spb.Status {
	if len(lines) == 0 && !s.RequireKey {
		return nil
	}
	return status(Unimplemented, "STREAM_NOT_PROTECTED", semel.RetryNo, 0,
		"A streaming call cannot be protected from double execution. Nothing was executed.")
}

// Do has the call take effect once. run is called at most once, in the calling
// goroutine, with a context that does not end with ctx. A panic in it leaves the
// outcome unknown and goes on up through Do.
func (s *Server) Do(ctx context.Context, c Call, run func(context.Context) Reply) Reply {
	if c.Scope.Operation == "" {
		c.Scope.Operation = c.Procedure
	}
	submit := semel.Submit{
		Identity:    semel.Identity{Scope: c.Scope, Key: c.Key},
		Fingerprint: s.schemas.fingerprint(c.Procedure, c.Request),
		Origin:      c.Origin,
		Wait:        s.Wait,
	}
	var mine *Reply
	out, err := s.Guard.Do(ctx, submit, func(ctx context.Context) (semel.Result, error) {
		reply := run(ctx)
		mine = &reply
		x, _ := semel.CurrentExecution(ctx)
		return s.judge(reply, x.Transactional())
	})
	return s.answer(ctx, out, err, mine)
}

// answer is the reply to a call that came to out and err. mine is that of its own
// handler; nil if that has not run or not returned.
func (s *Server) answer(ctx context.Context, out semel.Outcome, err error, mine *Reply) Reply {
	failure, ok := errors.AsType[*semel.Error](err)
	if !ok {
		failure = &semel.Error{Answer: out.Answer}
	}
	soon := max(failure.RetryAfter, time.Second)
	switch out.Answer {
	case semel.AnswerExecuted:
		return mine.with(out.Record.ExpiresAt, false)
	case semel.AnswerReplayed:
		return s.fromRecord(ctx, out)
	case semel.AnswerReleased:
		if mine == nil || errors.Is(err, semel.ErrRolledBack) {
			return failed(problem(semelhttp.ProblemRolledBack, failure.Retry(), soon))
		}
		return *mine
	case semel.AnswerInProgress:
		return failed(problem(semelhttp.ProblemInProgress, failure.Retry(), soon))
	case semel.AnswerMismatch:
		return failed(problem(semelhttp.ProblemKeyMismatch, failure.Retry(), 0))
	case semel.AnswerUnknown:
		if !out.Claimed {
			return failed(unknown(failure))
		}
		timedOut := errors.Is(err, semel.ErrDeadline) || mine != nil && Code(mine.Status.GetCode()) == DeadlineExceeded
		return failed(cutOff(failure, timedOut))
	case semel.AnswerUnavailable:
		if errors.Is(err, semel.ErrUnreadable) {
			return failed(unreadable(soon))
		}
		if out.Claimed {
			return failed(notRecorded(failure.Retry(), soon))
		}
		if _, busy := errors.AsType[*semel.BusyError](err); busy {
			return failed(problem(semelhttp.ProblemBusy, failure.Retry(), soon))
		}
		return failed(problem(semelhttp.ProblemStoreUnavailable, failure.Retry(), soon))
	}
	// The key is well-formed, so it is the scope that makes no identity.
	return failed(status(Internal, "SCOPE_INVALID", semel.RetryNo, 0, "The server could not name the operation. Nothing was executed."))
}

// judge says what to record of a reply. What the handler declared goes before
// what the code means, and doubt before certainty. If undone is set, what the
// handler of a failure changed is rolled back.
func (s *Server) judge(r Reply, undone bool) (semel.Result, error) {
	declared, said := semel.Declared(r.Err)
	code := Code(r.Status.GetCode())
	switch {
	case said && declared != semel.AnswerExecuted:
		return semel.Result{}, r.Err
	case said, code == OK:
	case s.Indeterminate(code):
		return semel.Result{}, semel.Indeterminate("the handler answered "+code.String(), r.Err)
	case s.NoEffect(code), undone && s.Release(code):
		return semel.Result{}, semel.NoEffect(r.Err)
	}
	return encode(r, s.MaxResult)
}

func (r Reply) with(expires time.Time, replayed bool) Reply {
	header := make(map[string][]string, len(r.Header)+2)
	for name, values := range r.Header {
		header[name] = values
	}
	delete(header, MetadataReplayed)
	delete(header, MetadataExpires)
	if replayed {
		header[MetadataReplayed] = []string{"true"}
	}
	if !expires.IsZero() {
		header[MetadataExpires] = []string{expires.UTC().Format(httpTime)}
	}
	r.Header = header
	return r
}

func failed(s *spb.Status) Reply { return Reply{Status: s} }

func (s *Server) fromRecord(ctx context.Context, out semel.Outcome) Reply {
	body, err := wholeBody(ctx, out.Result, s.Guard.Policy().StoreTimeout)
	if err != nil {
		return failed(unreadable(time.Second))
	}
	reply, err := decode(out.Result, body)
	if err != nil {
		// It completed, but there is nothing here that could be replayed.
		return failed(notRetained(out.Result.Reference))
	}
	return reply.with(out.Record.ExpiresAt, true)
}
