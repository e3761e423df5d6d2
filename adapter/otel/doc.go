// Package semelotel tells OpenTelemetry what guards, gateways and relays do:
// metrics and spans from their observers, by the semantic conventions.
//
//	telemetry, err := semelotel.New(semelotel.Config{MeterProvider: meters, TracerProvider: tracers})
//	guard, err := semel.New(semel.Config{Store: store, Observer: telemetry.Guard(nil)})
//	telemetry.WatchGuard(guard)
//	http.ListenAndServe(addr, telemetry.Handler(protect(mux)))
//
// # What is measured
//
//	http.server.request.duration   by method, route, status, outcome
//	http.client.request.duration   of a gateway's requests to its upstream, until the answer begins
//	semel.decisions                by outcome: executed, replayed, released, in_progress,
//	                               mismatch, unknown, rejected, unavailable
//	semel.refusals                 by problem: requests refused before any look in the store
//	semel.unprotected              requests let through while the store was down (fail open)
//	semel.store.failures           by call
//	semel.lease.losses, semel.handler.panics
//	semel.executions, semel.waiters, semel.spool.usage
//	                               now, and beside each its .limit
//	semel.spool.failures           bodies that could not be held
//	semel.records                  unknown, and lapsed: in progress without an owner
//	semel.sweep.records, semel.sweep.failures
//	semel.upstream.failures        by what is known: unreached, cut_off, answer_cut_off, gave_up
//	semel.outbox.oldest.age        by topic: the figure to alert on
//	semel.outbox.messages          by topic and state
//	semel.outbox.attempts          by topic and outcome
//	semel.outbox.attempt.duration  by topic
//	semel.outbox.store.failures    by call
//
// # What is not
//
// No attribute holds a tenant, an actor, a key or a path, or anything else that
// a stranger chooses: each metric has few series, whatever is sent. A method that
// is none of HTTP's is _OTHER. Routes are those that an [http.ServeMux] puts into
// a request's Pattern. Operations are left out unless Config.Operation names
// them, because by default they are method and path. Topics are the service's:
// beyond the first hundred they are _OTHER.
//
// # Spans
//
// Handler starts a server span for each request, or goes on with the client's
// trace. A traceparent header is believed, a tracestate passed on and not
// recorded. Put [Telemetry.Handler] in front of everything else. A guard tells
// the span of its context what was decided, so a span of any other
// instrumentation will do.
package semelotel
