// Package semel makes retried, raced and redelivered requests take effect once.
//
// A [Guard] protects operations with the records of a [Store]. [Guard.Do]
// protects a function, [Call] a function that returns a Go value, and package
// semelhttp an HTTP handler. A submit names its [Identity]: a key within a
// [Scope]. Of all submits of one identity, one executes. The others are answered
// from its record, or with an [Error] that says why they are not.
//
// Delivery is at least once and processing is idempotent. If a process dies
// between an effect outside of the store and its record, nobody can know whether
// the effect happened. The record then says that the outcome is unknown. A
// [Resolution] or the [CrashPolicy] settles it.
//
// # Users
//
// Programs make a Guard with [New], give it a [Policy], and identify operations
// by keys ([NewKey], [CompositeKey], [EventKey], [KeyRules]). Handlers declare
// what became of their effect with [NoEffect], [Final] and [Indeterminate], and
// find their claim with [CurrentExecution]. [Guard.Find], [Guard.Await] and
// [Guard.Resolve] are for those who look at records and settle them,
// [Guard.ResolveWhere] and [Guard.EraseWhere] do so for many at once, [Cipher]
// encrypts stored results, and [Observer] is for metrics and logs.
//
// # Authors of stores
//
// A store implements [Store] and [Claim]. It can also implement [Resolver],
// [Lister], [Sweeper], [Trail], [Watcher] and [Eraser], and its claims can
// implement [Joiner]. [NewAttempt], [NewRecordID] and [Token] are for stores and their
// tests only. Package storetest tests whether a store keeps the contract.
//
// The package imports the standard library only.
package semel
