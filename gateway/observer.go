package gateway

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/semelhq/semel/semelhttp"
)

// Observer is notified of what happens in the gateway. Every field may be
// nil. Functions must not block and may be called concurrently. They get
// neither keys nor payloads.
type Observer struct {
	// Failed is called when a request got no complete response from the upstream.
	Failed func(context.Context, Failed)
	// Forwarding is called before a request is sent to the upstream. The function
	// that it returns, if not nil, is called when the upstream's response has
	// begun, or when there will be none: then status is 0, and err says why.
	Forwarding func(context.Context, Forwarding) (answered func(status int, err error))
	// Reconciled is called after a look-up of Config.Reconcile.
	Reconciled func(context.Context, Reconciled)
	// Refused is called when a request was refused with a problem before
	// any store lookup, as in semelhttp.Config.
	Refused func(context.Context, semelhttp.Problem)
	// SpoolFailed is called when a large body could not be stored in
	// Config.SpoolDir. See semelhttp.SpoolsConfig.
	SpoolFailed func(ctx context.Context, err error)
}

// Forwarding is a request on its way to the upstream.
type Forwarding struct {
	Method string
	// Upstream is as configured; it must not be changed.
	Upstream *url.URL
	// Header is the header that is sent to the upstream. Functions may add to it, for example trace headers.
	Header http.Header
	// RecordID is that of the execution; empty for an unprotected request.
	RecordID string
}

// Reconciled is a look-up of what became of an operation.
type Reconciled struct {
	RecordID string
	// Found is present, absent, which means no effect only after
	// Reconcile.SettleAfter, or undecided.
	Found string
	// Status is that of the upstream's response, 0 if there was none.
	Status int
	// Took is how long the look-up took.
	Took time.Duration
	// Err says why nothing was decided.
	Err error
}

// Failed is a request that got no complete response.
type Failed struct {
	Method string
	// RecordID is that of the execution; empty for an unprotected request.
	RecordID string
	// Sent is false if certainly no byte of the request was sent.
	Sent bool
	// Answered reports whether the response had begun.
	Answered bool
	// GaveUp reports whether the gateway ended the exchange: at the
	// operation's deadline, or because it lost the claim. Err says which.
	GaveUp bool
	Err    error
}
