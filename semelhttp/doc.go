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
// The handler runs in the server's goroutine, under a claim, and does not depend
// on the client: its request has the whole body, and its context keeps the values
// of the request's and ends at the policy's deadline or when the claim is lost, not
// when the client goes away. What it writes is kept; the client is sent nothing
// before the record is durable. Bodies up to 256 KiB are held in memory, larger
// ones in temporary files, see Spools; a body that the client breaks off, or does
// not get to its end (see Pace), leads to no execution. Hence:
//
//   - Flush is accepted and has no effect, except in streams.
//   - 1xx responses are dropped.
//   - Hijack, deadlines and full duplex of http.ResponseController give
//     http.ErrNotSupported, and there is no Unwrap. A handler that answers 101
//     all the same leaves a completed record that cannot be replayed.
//   - An answer larger than Config.MaxResult, and one of type text/event-stream
//     from its first write or flush on, is a stream: it passes to the client as
//     it comes, while the record is in progress, and leaves a tombstone when the
//     handler has returned. A repetition is told that the operation completed and
//     its result was not retained. An answer whose Content-Length is over the
//     limit is a stream from its first write on. When the client goes away the
//     handler goes on and its writes are discarded.
//   - Where the claim lives in a transaction nothing passes before the commit, not
//     of a stream either: it is spooled. If it cannot be, it is dropped; the work
//     commits, and its client is told that the result was not retained.
//   - A client that prefers not to wait (respond-async) is answered with 202 while
//     the handler goes on in a goroutine of the guard, with a copy of the request.
//     See Attached for frameworks that cannot have that.
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
//     leaves the outcome unknown too. A panic goes on up, for the middleware
//     around this one and the server to see.
//   - In a transactional store, an answer of 500 and above has been rolled back:
//     it is passed on and the key is free again. See Config.ReleaseStatus.
//   - An answer over Config.MaxInline on a store that keeps no pieces leaves a
//     tombstone. The client whose request it is gets it whole all the same.
//
// The client whose own request was cut off is answered with 500, or what
// Config.Forwards says; 409 is for those who find the record.
//
// A recorded result is replayed as it was: status, every value of every header,
// trailers, the bytes of the body. Not replayed are Date, hop-by-hop fields and
// what middleware around this one has put into the header before: that belongs
// to the request at hand, and what the handler added stands beside it. Set-Cookie is replayed only where the scope names an
// actor. A large body is read from the store piece by piece as the client takes
// it; where the store fails on the way, the answer is cut off by a panic with
// http.ErrAbortHandler, such that the client sees that it is not whole.
package semelhttp
