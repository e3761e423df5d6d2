package semel

import (
	"fmt"
)

// Answer is what a submit came to.
type Answer uint8

const (
	// AnswerExecuted: this submit executed and the record of it is durable.
	AnswerExecuted Answer = iota + 1
	// AnswerReplayed: the identity had completed before; the result is from the record.
	AnswerReplayed
	// AnswerReleased: this submit executed, reported that it certainly had no
	// effect, and the identity is free again.
	AnswerReleased
	// AnswerInProgress: another submit of this identity is executing, or this
	// one still is and its caller stopped waiting.
	AnswerInProgress
	// AnswerMismatch: the identity belongs to another request.
	AnswerMismatch
	// AnswerUnknown: whether the effect happened is not known.
	AnswerUnknown
	// AnswerRejected: the submit is malformed; nothing was looked up.
	AnswerRejected
	// AnswerUnavailable: the store could not be asked, a bound is reached, or the
	// guard is draining. This submit executed nothing, but an earlier one of
	// the identity may have. Where Error.Claimed is set it did execute, and the
	// store could not be told what became of it.
	AnswerUnavailable
)

var answerNames = [...]string{
	AnswerExecuted: "executed", AnswerReplayed: "replayed", AnswerReleased: "released", AnswerInProgress: "in_progress",
	AnswerMismatch: "mismatch", AnswerUnknown: "unknown", AnswerRejected: "rejected", AnswerUnavailable: "unavailable",
}

func (a Answer) String() string {
	if int(a) < len(answerNames) && a > 0 {
		return answerNames[a]
	}
	return fmt.Sprintf("Answer(%d)", uint8(a))
}

// Effect says whether the effect that a submit asked for has happened.
type Effect uint8

const (
	// EffectMaybe: it may have happened, or be about to.
	EffectMaybe Effect = iota
	// EffectNone: it certainly did not happen, neither through this submit
	// nor through an earlier one of the same request.
	EffectNone
	// EffectDone: it happened, once, and the result is at hand.
	EffectDone
)

func (e Effect) String() string {
	switch e {
	case EffectNone:
		return "none"
	case EffectDone:
		return "done"
	}
	return "maybe"
}

// Effect tells what the answer says about the effect.
func (a Answer) Effect() Effect {
	switch a {
	case AnswerExecuted, AnswerReplayed:
		return EffectDone
	case AnswerReleased, AnswerMismatch, AnswerRejected:
		return EffectNone
	}
	return EffectMaybe
}

// RetryAdvice is the advice that goes with an answer.
type RetryAdvice string

const (
	// RetrySameKey: the same request under the same key is safe, and is how
	// to learn the result.
	RetrySameKey RetryAdvice = "same-key"
	// RetryNewKey: correct the request and send it under a new key.
	RetryNewKey RetryAdvice = "new-key"
	// RetryAfterResolution: the same key, after someone resolved the record.
	// A new key might repeat the effect.
	RetryAfterResolution RetryAdvice = "after-resolution"
	// RetryNo: retrying cannot help.
	RetryNo RetryAdvice = "no"
)

// Retry is the advice for the answer.
func (a Answer) Retry() RetryAdvice {
	switch a {
	case AnswerReleased, AnswerInProgress, AnswerUnavailable:
		return RetrySameKey
	case AnswerRejected:
		return RetryNewKey
	case AnswerUnknown:
		return RetryAfterResolution
	}
	return RetryNo
}
