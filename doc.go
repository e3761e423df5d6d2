// Package semel makes retried, raced and redelivered requests take effect once.
//
// A [Guard] sits on a [Store] and is the one entry for any operation:
// [Guard.Do] for a function, [Call] for a function that returns a Go value,
// and package semelhttp for HTTP handlers. A submit names its [Identity]: a
// key within a [Scope]. Of all submits of one identity, one executes; the
// others are answered from the record, or told honestly what is in the way.
//
// This is at-least-once delivery with idempotent processing, not magic. If a
// process dies between an effect outside the store and its record, nobody can
// know whether it happened. The record then says so (unknown) instead of
// guessing, and is settled by a [Resolution] or by the [CrashPolicy].
//
// The words used here, the states of a record and the rules that hold in every
// store are those of the project's design document. The package imports the
// standard library only.
package semel
