// Package gateway is a reverse proxy that makes retried, raced and repeated
// requests to a service in any language take effect once. It is what the
// command "semel gateway" runs, and can be embedded as an http.Handler.
//
// # What is protected
//
// By default every POST and PATCH that carries an Idempotency-Key. The
// operation is named by method and path, and the actor is a digest of the
// request's credential, see Config.Credentials. Everything else passes by the
// same transport, unprotected. What clients see is the contract of package
// semelhttp.
//
// # What a digest of the credential costs
//
// The gateway does not verify credentials; the upstream does. Therefore a
// refreshed token is another actor: a retry that carries it executes again. A
// revoked token still gets its own replays until they expire, because a replay
// does not reach the upstream. Callers without a credential share one scope: if
// two of them send the same request with the same key, one gets the other's
// result. Unguessable keys are their only protection. Package principal has
// sources that verify callers, for Config.Scope.
//
// # One decision, one send
//
// A protected request is sent to the upstream at most once for each execution. The
// transport resends no request by itself, unless its method is safe or no byte of it
// was written. [http.Transport] would send a request with an Idempotency-Key again when
// a connection breaks; the gateway hides the header from it, not from the upstream.
// Redirects are passed on, not followed. The gateway speaks HTTP/1.1 to the upstream,
// where a connection carries one request at a time, so that it is known for each
// request whether a byte of it was sent. With UpstreamConfig.HTTP2 that is known only
// of a request that got no connection: one that the upstream refuses (REFUSED_STREAM),
// or no longer processes when it shuts down (GOAWAY), also has an unknown outcome, and
// a request without a body has no Content-Length.
//
// # What is known after a failure
//
// If the upstream could not be reached, or the connection was found dead before a
// byte was written, there was certainly no effect: the key is free again, and the
// client gets a 503 with Retry-After. If the connection broke after that, the
// outcome is unknown: the client gets a 409, and nothing executes under the key
// until the record is resolved. The same holds after a 502, a 504 or a 503
// without Retry-After from the upstream. 401, 407, 425, 429 and a 503 with
// Retry-After mean that nothing was processed, and free the key. (An execution
// that took over from a dead one does not free the key, because the dead one may
// have had an effect.)
//
// An upstream that closes idle connections can make outcomes unknown, because
// the gateway may be writing to one at that moment. Its own limit for idle
// connections, Config.IdleTimeout, must be shorter than the upstream's. The
// default of 4 s is below that of common servers; one that closes sooner needs a
// smaller value.
//
// # What the upstream sees
//
// The upstream sees the request as it was sent, with these differences. Host is the
// upstream's own unless Config.PreserveHost is set. X-Forwarded-For, -Host and -Proto
// are the gateway's; those that the client sent are dropped unless
// Config.TrustForwarded is set, and so is Forwarded. In other spellings, such as
// X_Forwarded_For, they are always dropped. Hop-by-hop fields are dropped.
// Trailers are passed on if they were announced and do not concern the framing. The
// Idempotency-Key is passed on, so that an idempotent upstream can use it too.
// Semel-Fence holds the fence of the claim, which rises with each new execution of a
// key, so that an upstream that remembers the highest one it has seen can refuse an
// execution that was taken over. Upgrade is dropped from protected requests, and from
// all requests if it is to another version of HTTP, over which requests would bypass
// the gateway.
package gateway
