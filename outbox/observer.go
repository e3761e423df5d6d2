package outbox

import (
	"context"
	"time"
)

// Observer is told what a relay does, for metrics, logs and traces. Every field
// may be nil. Functions are called in the goroutine at work, at the same time
// from many, and must not block. They are given neither keys, headers nor
// payloads, unless a sink puts them into its errors.
type Observer struct {
	// Status is told what waits, every Config.StatusEvery; the age of the
	// oldest pending message is the figure to alert on.
	Status func(context.Context, []TopicStatus)
	// Delivered: a message arrived, and its record says so.
	Delivered func(context.Context, Attempted)
	// Retried: an attempt failed, and there will be another after Delay.
	Retried func(context.Context, Attempted)
	// Dead: a message is given up.
	Dead func(context.Context, Attempted)
	// Unknown: nobody can know whether a message has arrived.
	Unknown func(context.Context, Attempted)
	// LeaseLost: a claim was lost, or could not be renewed in time, while its
	// message was under way. The delivery was cancelled.
	LeaseLost func(context.Context, Attempted)
	// Claimed: the store was asked for messages. Got beside Asked says how full
	// claims are; always full ones are a relay that lags behind.
	Claimed func(context.Context, Fetched)
	// Swept: settled messages past their retention were removed.
	Swept func(ctx context.Context, removed int)
	// StoreFailed: a call of the store failed; it is tried again.
	StoreFailed func(ctx context.Context, call string, err error)
}

// Attempted is an attempt at a message.
type Attempted struct {
	Topic   string
	ID      string
	Attempt int
	Took    time.Duration // of the sink
	Delay   time.Duration // until the next attempt; for Retried
	Err     error         // why it did not arrive
}

// Fetched is an answer of Store.Exchange to a claim.
type Fetched struct {
	Topic      string // of the route, "" for all
	Asked, Got int
	Took       time.Duration // with what was settled in the same call
}

func tell[T any](ctx context.Context, f func(context.Context, T), v T) {
	if f != nil {
		f(ctx, v)
	}
}
