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
// The gateway does not check credentials; the upstream does. That is simple and
// has a price. A refreshed token is another actor: a retry that carries it
// executes again. A revoked token still sees its own replays until they expire,
// because a replay does not ask the upstream. Callers without a credential share
// one scope: two of them that choose the same key meet, and with the same
// request one is answered with the other's result. Keys that cannot be guessed
// are their only protection. Package principal has sources that check who a
// caller is, for Config.Scope.
//
// # One decision, one send
//
// A protected request is sent to the upstream at most once for each execution,
// and no request is sent again on the transport's own account, unless its method
// is safe or no byte of it was written. [http.Transport] would send a request
// with an Idempotency-Key again when a connection breaks; the gateway hides the
// header from it, not from the upstream. Redirects are passed on, not followed.
// The gateway speaks HTTP/1.1 to the upstream, where a connection carries one
// request at a time, so that it is known for each request whether a byte of it
// was sent. With UpstreamConfig.HTTP2 that is known only of a request that was given no
// connection: one that the upstream refuses (REFUSED_STREAM), or does not reach
// any more when it shuts down (GOAWAY), has an unknown outcome too, and a request
// without a body has no Content-Length.
//
// # What is known after a failure
//
// If the upstream could not be reached, or the connection turned out dead before
// a byte was written, there was certainly no effect: the key is free again, and
// the client gets a 503 with Retry-After. If the connection broke after that,
// the outcome is unknown: the client gets a 409, and nothing executes under the
// key until the record is resolved. So it is after a 502, a 504 or a 503 without
// Retry-After from the upstream. 401, 407, 425, 429 and a 503 with Retry-After
// mean that nothing was processed, and free the key. (An execution that took over
// from a dead one frees nothing: the dead one may have had an effect.)
//
// An upstream that closes idle connections can make outcomes unknown: the
// gateway may just be writing to one. Its own limit for idle connections,
// Config.IdleTimeout, must be shorter than the upstream's. The default of 4 s is
// below that of common servers; one that closes sooner needs a smaller value.
//
// # What the upstream sees
//
// The request as it was sent, with these differences. Host is the upstream's own
// unless Config.PreserveHost is set. X-Forwarded-For, -Host and -Proto are the
// gateway's; those that the client sent are dropped unless Config.TrustForwarded
// is set, and so is Forwarded; in other spellings, as X_Forwarded_For, always.
// Hop-by-hop fields are dropped. Trailers are passed
// on if they were announced and do not concern the framing. The Idempotency-Key is
// passed on, so that an idempotent upstream can use it too. Semel-Fence holds
// the fence of the claim, which rises with each new execution of a key, so that
// an upstream that remembers the highest one it has seen can refuse an execution
// that was taken over. Upgrade is dropped from protected requests, and from all if it
// is to another version of HTTP, by which requests would pass the gateway unseen.
package gateway
