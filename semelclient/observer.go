package semelclient

import (
	"context"
	"time"

	"github.com/semelhq/semel"
)

// Observer is told what a Transport does, for metrics and logs. Every
// field may be nil. Functions are called in the goroutine at work and must not
// block. What they are given holds no key and no payload.
type Observer struct {
	// Tried: a request was tried, and answered or not.
	Tried func(context.Context, Tried)
	// GaveUp: a call ended with an error, or with an answer that asks to come
	// back.
	GaveUp func(context.Context, GaveUp)
}

// Tried is one try of a request.
type Tried struct {
	Method string
	Try    int  // from 1
	Keyed  bool // the request carries a key
	Status int  // of the answer; zero if there was none
	Err    error
	// Retry is set if there will be another try, after Wait.
	Retry bool
	Wait  time.Duration
	Took  time.Duration // until the header of the answer
}

// GaveUp is a call without a final answer.
type GaveUp struct {
	Method string
	Tries  int
	Status int // of the last answer; zero if the last try got none
	Err    error
	Reason Reason
	Effect semel.Effect // EffectNone or EffectMaybe
}
