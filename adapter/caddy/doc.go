// Package semelcaddy is a module of the Caddy web server: the handler
// http.handlers.semel, in a Caddyfile the directive semel. In front of reverse_proxy
// it makes POST and PATCH requests with an Idempotency-Key take effect once, and
// replays the first response to repetitions. What clients see is the contract of
// package semelhttp. See Handler for the settings, and the README for how to build a
// Caddy that has it.
//
// # What is known after a failure
//
// The outcome is unknown if later handlers return an error, or respond with
// 499, by which Caddy reports that the request was cancelled, with 502 or 504, or
// with 503 without Retry-After. The client gets the problem outcome-unknown,
// routes of handle_errors are not run, and nothing executes under the key until
// the record is resolved with the command semel keys resolve.
//
// # Reloads
//
// The store belongs to the process, not to a configuration. A reload leaves it
// open and does not affect running executions: they end in the handlers of the
// configuration they began in, whether or not the client still waits, and are
// recorded.
//
// # One decision, one send
//
// The transport of reverse_proxy would send a request again by itself if it has an
// Idempotency-Key and an empty body and the connection breaks. The handler gives it
// the header under a name that the transport does not look for; on the wire, where
// case does not matter, it is the same. Later handlers that look for
// Idempotency-Key do not find it. A body cannot be read twice. The handler cannot
// prevent a reverse_proxy from resending that is configured to: with retry_match,
// and an empty body or request_buffers.
package semelcaddy
