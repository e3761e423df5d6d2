package gateway

import "context"

// Observer is told what happens in the gateway. Every field may
// be nil. Functions must not block and may be called at the same time from
// many goroutines. They are given neither keys nor payload.
type Observer struct {
	// Failed: a request got no whole answer from the upstream.
	Failed func(context.Context, Failed)
	// SpoolFailed: a large body could not be held in Config.SpoolDir. See
	// semelhttp.SpoolsConfig.
	SpoolFailed func(ctx context.Context, err error)
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
