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
	semelhttp.ProblemBusy:              Unavailable,
}

func problem(c semelhttp.ProblemCase, retry semel.RetryAdvice, after time.Duration) *spb.Status {
	p := c.Problem()
	return status(codes[c], reason(c), retry, after, p.Title+". "+p.Detail)
}

func reason(c semelhttp.ProblemCase) string {
	return strings.ToUpper(strings.ReplaceAll(string(c), "-", "_"))
}

func keyMalformed(err error) *spb.Status {
	reasons := strings.ReplaceAll(err.Error(), "\n", "; ") // it never holds the key
	return status(InvalidArgument, reason(semelhttp.ProblemKeyMalformed), semel.RetryNewKey, 0,
		strings.ToUpper(reasons[:1])+reasons[1:]+". Nothing was executed.")
}

// unknown answers a call that found an unknown outcome on record.
func unknown(failure *semel.Error) *spb.Status {
	return open(FailedPrecondition, semelhttp.ProblemOutcomeUnknown.Problem().Title, failure)
}

// cutOff answers the call whose own execution came to an unknown outcome. The
// failure is the server's, and no state that the client could mend: whoever
// counts errors must see it as one. Of the codes of servers it is not
// UNAVAILABLE, which clients re-send by themselves, nor INTERNAL, which says that
// something is broken: DEADLINE_EXCEEDED is by definition open as to the effect,
// and so, by its name, is UNKNOWN.
func cutOff(failure *semel.Error, timedOut bool) *spb.Status {
	if timedOut {
		return open(DeadlineExceeded, "The operation ran out of time, and it is not known whether it took effect", failure)
	}
	return open(Unknown, "The operation was cut off, and it is not known whether it took effect", failure)
}

// open is the status of an unknown outcome. The failure knows best how that can
// become known.
func open(code Code, what string, failure *semel.Error) *spb.Status {
	next := "It is not executed again until that is settled. Keep the key: another key could cause the effect twice."
	if failure.Retry() == semel.RetrySameKey {
		next = "Send the same request with the same key again to have that settled: another key could cause the effect twice."
	}
	return status(code, reason(semelhttp.ProblemOutcomeUnknown), failure.Retry(), failure.RetryAfter, what+". "+next)
}

// notRecorded answers the call whose own execution could not be put on record.
func notRecorded(retry semel.RetryAdvice, after time.Duration) *spb.Status {
	return status(Unavailable, reason(semelhttp.ProblemStoreUnavailable), retry, after,
		"The idempotency store is unavailable. The operation was begun and may have taken effect, but that could not be recorded. "+
			"Send the same request with the same key again to learn what became of it: another key could cause the effect twice.")
}

// unreadable answers a call whose recorded reply is there but could not be read.
func unreadable(after time.Duration) *spb.Status {
	return status(Unavailable, reason(semelhttp.ProblemStoreUnavailable), semel.RetrySameKey, after,
		"The operation completed, but its recorded response could not be read from the idempotency store. Send the same request with the same key again.")
}

func notRetained(reference string) *spb.Status {
	s := problem(semelhttp.ProblemResultNotRetained, semel.RetryNo, 0)
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
