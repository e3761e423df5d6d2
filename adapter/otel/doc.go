// Package semelotel reports to OpenTelemetry what guards, gateways and
// relays do: metrics and spans from their observers, following the semantic
// conventions.
//
//	telemetry, err := semelotel.New(semelotel.Config{MeterProvider: meters, TracerProvider: tracers})
//	guard, err := semel.New(semel.Config{Store: store, Observer: telemetry.Guard(nil)})
//	telemetry.WatchGuard(guard)
//	http.ListenAndServe(addr, telemetry.Handler(protect(mux)))
//
// # What is measured
//
//	http.server.request.duration   by method, route, status, outcome
//	http.client.request.duration   of a gateway's requests to its upstream, until the response begins
//	semel.decisions                by outcome: executed, replayed, released, in_progress,
//	                               mismatch, unknown, rejected, unavailable
//	semel.refusals                 by problem: requests refused before any store lookup
//	semel.unprotected              requests let through while the store was down (fail open)
//	semel.store.failures           by call
//	semel.lease.losses, semel.handler.panics
//	semel.executions, semel.waiters, semel.spool.usage
//	                               current values, and for each its .limit
//	semel.spool.failures           bodies that could not be stored
//	semel.records                  unknown, and lapsed: in progress without an owner
//	semel.sweep.records, semel.sweep.failures
//	semel.reconciliations          look-ups with the upstream, by what was found: present, absent, undecided
//	semel.upstream.failures        by what is known: unreached, cut_off, answer_cut_off, gave_up
//	semel.outbox.oldest.age        by topic: the figure to alert on
//	semel.outbox.messages          by topic and state
//	semel.outbox.attempts          by topic and outcome
//	semel.outbox.attempt.duration  by topic
//	semel.outbox.store.failures    by call
//
// # What is not measured
//
// No attribute holds a tenant, an actor, a key or a path, or anything else that a
// client chooses: each metric has few series, whatever is sent. A method that
// HTTP does not define is _OTHER. Routes are those that an [http.ServeMux] puts
// into a request's Pattern. Operations are left out unless Config.Operation names
// them, because by default they are method and path. Topics are the service's:
// beyond the first hundred they are _OTHER.
//
// # Spans
//
// Handler starts a server span for each request, or continues the client's
// trace. A traceparent header is trusted; a tracestate is passed on but not
// recorded. Put [Telemetry.Handler] in front of everything else. A guard
// records its decision on the span in its context, so a span of any other
// instrumentation works too.
package semelotel
