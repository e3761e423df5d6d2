package semelclient

import (
	"context"
	"time"

	"github.com/semelhq/semel"
)

// Observer has functions that a Transport calls, for metrics and logs. Each may be
// nil. They are called synchronously and must not block. Their arguments hold
// neither keys nor payload.
type Observer struct {
	// Tried is called after each attempt, even if there was no response.
	Tried func(context.Context, Tried)
	// GaveUp is called when a call ends with an error, or with a response that asks
	// for a retry.
	GaveUp func(context.Context, GaveUp)
}

// Tried describes an attempt to send a request.
type Tried struct {
	Method string
	Try    int  // the number of the attempt, from 1
	Keyed  bool // whether the request has a key
	Status int  // of the response; zero if there was none
	Err    error
	// Retry reports whether there will be another attempt, after Wait.
	Retry bool
	Wait  time.Duration
	Took  time.Duration // until the header of the response
}

// GaveUp describes a call that ended without a final response.
type GaveUp struct {
	Method string
	Tries  int
	Status int // of the last response; zero if the last attempt got none
	Err    error
	Reason Reason
	Effect semel.Effect // EffectNone or EffectMaybe
}
