package semel

import (
	"fmt"
)

// Answer is the outcome of a submit.
type Answer uint8

const (
	// AnswerExecuted means that this submit executed, and that its record is
	// durable.
	AnswerExecuted Answer = iota + 1
	// AnswerReplayed means that the identity had completed before. The result is
	// read from its record.
	AnswerReplayed
	// AnswerReleased means that this submit executed and reported that it
	// certainly had no effect. The identity is free again.
	AnswerReleased
	// AnswerInProgress means that another submit of the identity is executing,
	// or that this one is and its caller has stopped waiting.
	AnswerInProgress
	// AnswerMismatch means that the identity was used for another request.
	AnswerMismatch
	// AnswerUnknown means that it is not known whether the effect happened.
	AnswerUnknown
	// AnswerRejected means that the submit is malformed. The store was not
	// asked.
	AnswerRejected
	// AnswerUnavailable means that the store could not be asked, that a limit of
	// the guard is reached, or that the guard is draining. This submit executed
	// nothing, but an earlier one of the identity may have. With ErrUnreadable, an
	// earlier one has, and its result cannot be decrypted. If Error.Claimed is
	// set, this submit did execute, and its outcome could not be recorded.
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
	// EffectMaybe means that the effect may have happened, or may yet happen.
	EffectMaybe Effect = iota
	// EffectNone means that the effect certainly did not happen, neither through
	// this submit nor through an earlier one of the same request.
	EffectNone
	// EffectDone means that the effect happened once and its result is
	// available.
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

// Effect returns what the answer says about the effect.
func (a Answer) Effect() Effect {
	switch a {
	case AnswerExecuted, AnswerReplayed:
		return EffectDone
	case AnswerReleased, AnswerMismatch, AnswerRejected:
		return EffectNone
	}
	return EffectMaybe
}

// RetryAdvice says whether, and how, to retry after an answer.
type RetryAdvice string

const (
	// RetrySameKey means that retrying the same request under the same key is
	// safe, and is the way to learn the result.
	RetrySameKey RetryAdvice = "same-key"
	// RetryNewKey means that the request must be corrected and sent under a new
	// key.
	RetryNewKey RetryAdvice = "new-key"
	// RetryAfterResolution means that the same key can be used again once the
	// record has been resolved. A new key might repeat the effect.
	RetryAfterResolution RetryAdvice = "after-resolution"
	// RetryNo means that retrying cannot help.
	RetryNo RetryAdvice = "no"
)

// Retry returns the advice for the answer.
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
