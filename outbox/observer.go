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
	// Status is called every Config.StatusEvery with the status of each topic.
	// Alert on the age of the oldest pending message.
	Status func(context.Context, []TopicStatus)
	// Delivered is called when a message has arrived and is recorded as
	// delivered.
	Delivered func(context.Context, Attempted)
	// Retried is called when an attempt has failed and another will follow
	// after Delay.
	Retried func(context.Context, Attempted)
	// Dead is called when a message is dead.
	Dead func(context.Context, Attempted)
	// Unknown is called when it cannot be known whether a message has arrived.
	Unknown func(context.Context, Attempted)
	// LeaseLost is called when a claim was lost, or could not be renewed in
	// time, during a delivery. The delivery was cancelled.
	LeaseLost func(context.Context, Attempted)
	// Claimed is called after the store was asked for messages. If Got always
	// equals Asked, the relay is falling behind.
	Claimed func(context.Context, Fetched)
	// Swept is called after settled messages past their retention were removed.
	Swept func(ctx context.Context, removed int)
	// StoreFailed is called when a call of the store has failed. It is tried
	// again.
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

// Fetched describes a claim made with Store.Exchange.
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
