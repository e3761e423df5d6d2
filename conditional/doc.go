// Package conditional prevents lost updates. A change names the state it is
// meant for, with If-Match (RFC 9110 13) or otherwise, and takes effect in that
// state only, because the check and the change are one statement.
//
// # The middleware
//
// New reads the precondition of a request that may change something, and passes
// it to the handler in its context. It does not evaluate the precondition,
// because somebody else's change could come between the check and the handler's
// change. Instead
//
//   - a malformed If-Match or If-None-Match is answered with 400,
//   - a request that must have a precondition and has none with 428,
//   - and if a handler responds with success or a redirection without having
//     applied the precondition, the response is replaced by 500.
//
// Responses to GET and HEAD are evaluated against the preconditions of RFC 9110,
// in its order, once the handler has set ETag and Last-Modified, and may become
// 304 or 412. Malformed fields are ignored there. If-Range and Range are left to
// the handler.
//
// # The handler
//
// Apply makes one change, as a compare-and-set of the resource's version, and
// Table.Apply one transition of a state machine. Both apply the precondition in
// their context. Without one, a change is made to the current version, whatever
// it is, but never overwrites a version that it has not read. They work on any
// database, through two functions of the caller with one statement each. Refuse
// writes the responses for their errors.
//
// Outside of HTTP, set the version that a change is meant for with Expect.
//
// # With an idempotency key
//
// The key tells whether this request has been executed; the precondition tells
// whether it may be executed now. The idempotency middleware goes outside, so that
// it decides first: a retry of a change that was made gets the recorded response,
// even though its precondition no longer holds. A request that this package
// refuses because of its precondition leaves no record. Let RequestHeaders take
// part in the fingerprint.
//
// Without a key, a client that has lost the response gets 412 when it repeats
// its change. Change.Done makes the repetition succeed instead.
package conditional
