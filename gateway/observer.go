package gateway

import (
	"context"
	"net/http"
	"net/url"

	"github.com/semelhq/semel/semelhttp"
)

// Observer is told what happens in the gateway. Every field may
// be nil. Functions must not block and may be called at the same time from
// many goroutines. They are given neither keys nor payload.
type Observer struct {
	// Failed: a request got no whole answer from the upstream.
	Failed func(context.Context, Failed)
	// Forwarding: a request is about to be sent to the upstream. The function that
	// it returns, if it is not nil, is called once the upstream's answer has begun
	// or there will be none: status is 0 then, and err says why.
	Forwarding func(context.Context, Forwarding) (answered func(status int, err error))
	// Refused: a request was answered with a problem before any look in the
	// store, as in semelhttp.Config.
	Refused func(context.Context, semelhttp.Problem)
	// SpoolFailed: a large body could not be held in Config.SpoolDir. See
	// semelhttp.SpoolsConfig.
	SpoolFailed func(ctx context.Context, err error)
}

// Forwarding is a request on its way to the upstream.
type Forwarding struct {
	Method string
	// Upstream is as configured; it must not be changed.
	Upstream *url.URL
	// Header is what the upstream gets, which may be added to: trace headers.
	Header http.Header
	// RecordID is that of the execution; empty for an unprotected request.
	RecordID string
}

// Failed is a request that got no whole answer.
type Failed struct {
	Method string
	// RecordID is that of the execution; empty for an unprotected request.
	RecordID string
	// Sent is false if certainly no byte of the request was sent.
	Sent bool
	// Answered says that the answer had begun.
	Answered bool
	// GaveUp says that it was the gateway that ended the exchange: at the
	// operation's deadline, or because it lost the claim. Err says which.
	GaveUp bool
	Err    error
}
