// Package semelhttp protects HTTP handlers from executing a request twice. Its
// middleware implements draft-ietf-httpapi-idempotency-key-header-07: of all requests
// of an actor for an operation with the same Idempotency-Key, one is executed. The
// others get its recorded response, or a problem (RFC 9457) that says why they do not,
// and whether and how to retry. The draft expired on 2026-04-18 and has no successor;
// what a client can rely on is in docs/http.md.
//
// Package semelclient is the client's side.
//
// # Order of middleware
//
// Put the middleware behind authentication, because Config.Scope must know the actor,
// and in front of everything that reads the body, because the body is part of the
// fingerprint.
//
// # Handlers
//
// The handler runs in the goroutine of the server, under a claim. Its request has the
// whole body. Its context has the values of the request's context, but does not end
// when the client goes away. It ends at the policy's Deadline, and when the claim is
// lost. The response is sent when its record is durable. Bodies up to 256 KiB are held
// in memory, and larger ones in temporary files; see Spools. A request whose body does
// not arrive completely and in time is not executed; see Pace.
//
// For a handler this means:
//
//   - Flush has no effect, except in streams.
//   - 1xx responses are dropped.
//   - Hijack and the deadlines and full duplex of http.ResponseController return
//     http.ErrNotSupported, and the ResponseWriter has no Unwrap method. A handler that
//     responds with 101 nevertheless leaves a completed record that cannot be replayed.
//   - A response larger than Config.MaxResult is a stream, as is one of type
//     text/event-stream. A stream is sent while the handler writes it, and recorded as a
//     tombstone when the handler returns. A repeated request is told that the operation
//     completed and its result was not retained. If Content-Length is over the limit,
//     the response is a stream from the first write. If the client goes away, the
//     handler goes on and what it writes is discarded.
//   - If the claim lives in a transaction, nothing is sent before the commit. Large
//     responses and streams are spooled. If one cannot be spooled it is dropped; the
//     transaction commits, and the client is told that the result was not retained.
//   - If the client prefers not to wait (respond-async), it is answered with 202 and the
//     handler goes on in a goroutine of the guard, with a copy of the request. For
//     frameworks that do not allow this, see Attached.
//   - The request body can be read until the handler returns.
//
// # Records
//
// Every response is final and recorded, even a 500, with these exceptions:
//
//   - If Config.NoEffectStatus or DeclareNoEffect says that there was certainly no
//     effect, the response is sent and the key is free again.
//   - If Config.IndeterminateStatus or DeclareIndeterminate says that it is not known
//     whether there was an effect, the client is told so. Nothing is executed under the
//     key until the record is resolved.
//   - If the handler panics, or writes a body shorter than its Content-Length, the
//     outcome is unknown as well. The panic is passed on.
//   - In a transactional store, a response with a status of 500 or above is rolled back.
//     It is sent, and the key is free again. See Config.ReleaseStatus.
//   - A response larger than Config.MaxInline is recorded as a tombstone if the store
//     does not keep pieces. The client of the request gets it complete even so.
//
// A request whose own execution was cut off is answered with 500, or as described at
// Config.Forwards. A 409 is for requests that find the record of another.
//
// A replay has the status, every value of every header field, the trailer and the body
// of the recorded response. It does not have Date, hop-by-hop fields, and fields that
// middleware around this one has set; those of the current request are added instead.
// Set-Cookie is replayed only if the scope names an actor. A large body is read from
// the store piece by piece, as the client reads it. If the store fails meanwhile, the
// response is aborted by a panic with http.ErrAbortHandler, so that the client can see
// that it is incomplete.
package semelhttp
