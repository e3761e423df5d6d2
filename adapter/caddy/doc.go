// Package semelcaddy is semel as a module of the Caddy web server: the handler
// http.handlers.semel, in a Caddyfile the directive semel. In front of reverse_proxy
// it has POST and PATCH requests with an Idempotency-Key take effect once, and
// answers what repeats them with the first answer. What clients see is the
// contract of package semelhttp. See Handler for the settings, and the README
// for how to build a Caddy that has it.
//
// # What is known after a failure
//
// An error that the handlers behind return makes the outcome unknown, and so does
// an answer of 499, by which Caddy says that the request was cancelled, of 502 or
// 504, or of 503 without Retry-After. The client gets the problem outcome-unknown,
// routes of handle_errors are not run, and nothing executes under the key until
// the record is resolved with the command semel keys resolve.
//
// # Reloads
//
// The store belongs to the process and not to a configuration. A reload leaves it
// open, and takes nothing away from executions that are under way: they end in the
// handlers of the configuration they began in, whether or not the client still
// waits, and are recorded.
//
// # One decision, one send
//
// The transport of reverse_proxy would send a request again by itself if it has an
// Idempotency-Key and an empty body and the connection breaks. The handler gives it
// the header under a name that the transport does not look for; on the wire, where
// case does not matter, it is the same. Handlers behind that look for
// Idempotency-Key do not find it. A body cannot be read twice. What it cannot keep
// from sending again is a reverse_proxy that is told to: with retry_match, and an
// empty body or request_buffers.
package semelcaddy
