// Package semelhttp protects HTTP handlers from double execution. Its
// middleware follows draft-ietf-httpapi-idempotency-key-header-07: of all
// requests of one operation, by one actor, with one Idempotency-Key, one is
// executed. The others are answered with its recorded result, or with a problem
// (RFC 9457) that says what is in the way and what to send next.
//
// # Where it goes
//
// The middleware sits behind authentication, because Config.Scope must know who
// asks: replays are for the same actor only. It sits in front of everything that
// reads the body, because the body takes part in the fingerprint.
//
// # What a handler sees
//
// The handler runs in a goroutine of its own, under a claim, and does not
// depend on the client: its request is a copy with the whole body, its context
// keeps the values of the request's and ends at the policy's deadline or when the
// claim is lost, not when the client goes away. What it writes is kept; the client
// is sent nothing before the record is durable. Bodies up to 256 KiB are held in
// memory, larger ones in temporary files, see Config.SpoolDir; a body that the
// client breaks off leads to no execution. Hence:
//
//   - Flush is accepted and has no effect, except in streams.
//   - 1xx responses are dropped.
//   - Hijack, deadlines and full duplex of http.ResponseController give
//     http.ErrNotSupported, and there is no Unwrap. A handler that answers 101
//     all the same leaves a completed record that cannot be replayed.
//   - An answer larger than Config.MaxResult, and one of type text/event-stream
//     from its first write or flush on, is a stream: a tombstone is recorded
//     first, then the answer passes as it comes. A repetition is told that the
//     operation completed and its result was not retained. When the client of a
//     stream goes away, the handler of a large answer goes on and its writes are
//     discarded; the context of an event stream is cancelled. What happens to a
//     stream after its tombstone changes nothing on record. An answer whose
//     Content-Length is over the limit is one from its first write on.
//   - The request's body can be read until the handler returns, and not after.
//
// # What is recorded
//
// Every answer is final and recorded, a 500 too, except:
//
//   - Config.NoEffectStatus and DeclareNoEffect say that certainly nothing
//     happened: the answer is passed on, the key is free again.
//   - Config.IndeterminateStatus and DeclareIndeterminate say that nobody knows:
//     the client is told so, and nothing executes under the key before someone
//     resolved the record.
//   - A handler that panics, or whose body is shorter than its Content-Length,
//     leaves the outcome unknown too. After the client was told, the panic goes
//     on in the server's goroutine with its original value, for the server and
//     the middleware around this one to see. (Over HTTP/2 the server then resets
//     the stream, which clients may take for a failure to read the answer.)
//   - An answer over Config.MaxInline on a store that keeps no pieces leaves a
//     tombstone. The client whose request it is gets it whole all the same.
//   - A handler that calls semel.Execution.Complete has put its own result on
//     record, and that is what its client gets; what it writes is dropped.
//
// A recorded result is replayed as it was: status, every value of every header,
// trailers, the bytes of the body. Not replayed are Date, hop-by-hop fields and
// what middleware around this one has put into the header before: that belongs
// to the request at hand. Set-Cookie is replayed only where the scope names an
// actor. A large body is read from the store piece by piece as the client takes
// it; where the store fails on the way, the answer is cut off by a panic with
// http.ErrAbortHandler, such that the client sees that it is not whole.
package semelhttp
