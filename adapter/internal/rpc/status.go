package rpc

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

const httpTime = http.TimeFormat

// Domain is that of the ErrorInfo in every refusal.
const Domain = "github.com/semelhq/semel"

// codes say which status a case has. The deciding question is what clients do
// with it by themselves: UNAVAILABLE is re-sent by common retry policies, which
// is right where the same key makes that safe and nothing else is to be waited
// for, and never for an unknown outcome.
var codes = map[semelhttp.ProblemCase]Code{
	semelhttp.ProblemKeyMissing:        InvalidArgument,
	semelhttp.ProblemKeyMalformed:      InvalidArgument,
	semelhttp.ProblemKeyMismatch:       InvalidArgument,
	semelhttp.ProblemInProgress:        Aborted,
	semelhttp.ProblemOutcomeUnknown:    FailedPrecondition,
	semelhttp.ProblemResultNotRetained: FailedPrecondition,
	semelhttp.ProblemStoreUnavailable:  Unavailable,
	semelhttp.ProblemRolledBack:        Unavailable,
}

func problem(c semelhttp.ProblemCase, after time.Duration) *spb.Status {
	p := c.Problem()
	return status(codes[c], reason(c), p.Retry, after, p.Title+". "+p.Detail)
}

func reason(c semelhttp.ProblemCase) string {
	return strings.ToUpper(strings.ReplaceAll(string(c), "-", "_"))
}

func keyMalformed(err error) *spb.Status {
	reasons := strings.ReplaceAll(err.Error(), "\n", "; ") // it never holds the key
	return status(InvalidArgument, reason(semelhttp.ProblemKeyMalformed), semel.RetryNewKey, 0,
		strings.ToUpper(reasons[:1])+reasons[1:]+". Nothing was executed.")
}

// unknown knows best from the failure how the outcome can become known.
func unknown(failure *semel.Error) *spb.Status {
	p := semelhttp.ProblemOutcomeUnknown.Problem()
	return status(FailedPrecondition, reason(semelhttp.ProblemOutcomeUnknown), failure.Retry(), failure.RetryAfter,
		p.Title+". It is not executed again until that is settled. Keep the key: another key could cause the effect twice.")
}

func notRetained(reference string) *spb.Status {
	s := problem(semelhttp.ProblemResultNotRetained, 0)
	if reference != "" {
		s.Details = append(s.Details, pack(&errdetails.ResourceInfo{ResourceName: reference})...)
	}
	return s
}

// NotProtobuf answers a protected call whose messages are not protobuf.
func NotProtobuf() *spb.Status {
	return status(Unimplemented, "NOT_PROTOBUF", semel.RetryNo, 0,
		"Only calls with protobuf messages can be protected from double execution. Nothing was executed.")
}

// NoScope answers a call whose scope gave an error that is no status itself.
func NoScope() *spb.Status {
	return status(Unauthenticated, "SCOPE_REFUSED", semel.RetrySameKey, 0,
		"The call was refused before its idempotency key was looked up. Nothing was executed.")
}

func status(code Code, reason string, retry semel.RetryAdvice, after time.Duration, message string) *spb.Status {
	details := pack(&errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: map[string]string{"retry": string(retry)}})
	if after > 0 {
		details = append(details, pack(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})...)
	}
	return &spb.Status{Code: int32(code), Message: message, Details: details}
}

func pack(m proto.Message) []*anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		return nil // the fields here are valid UTF-8, so they always marshal
	}
	return []*anypb.Any{a}
}

// Bare returns the error that err is about, where err is one of semel.NoEffect,
// semel.Final or semel.Indeterminate around it: the wrapper is not for clients.
func Bare(err error) error {
	if _, said := semel.Declared(err); said {
		if inner := errors.Unwrap(err); inner != nil {
			if _, said := semel.Declared(inner); !said {
				return inner
			}
		}
	}
	return err
}
