// Package conditional prevents lost updates. A change says which state it is
// meant for, by If-Match (RFC 9110 13) or otherwise, and takes effect only in
// that state: the check and the change are one statement.
//
// # The middleware
//
// New reads the precondition of a request that may change something, and passes
// it to the handler in its context. It does not evaluate it, because another
// change could come between a check in front of the handler and the handler's
// change. Instead
//
//   - a malformed If-Match or If-None-Match gets 400,
//   - a request that must have a precondition and has none gets 428,
//   - and if a handler responds with success, or a redirection, without having
//     applied the precondition, its response is replaced by 500.
//
// For GET and HEAD the preconditions of RFC 9110 are evaluated, in its order,
// against the ETag and Last-Modified that the handler has set; the response may
// become 304 or 412. Malformed fields are ignored there. If-Range and Range are
// left to the handler.
//
// # The handler
//
// Apply makes one change, as a compare-and-set of the resource's version, and
// Table.Apply one transition of a state machine. Both apply the precondition in
// their context, and are useful even without one: then a change is made to the
// current version, and never overwrites one that it has not seen. They work with
// any database, through two functions of the caller's with one statement each.
// Refuse responds to their errors.
//
// Outside HTTP, use Expect to give the version that a change is meant for.
//
// # With an idempotency key
//
// The two mechanisms answer different questions: the key, whether this request has
// been executed; the precondition, whether it may be executed now. The idempotency
// middleware goes outside, so it decides first: a retry of a change that was made
// gets the recorded response, even if its precondition no longer holds. A request
// that this package refuses because of its precondition leaves no record. Include
// RequestHeaders in the fingerprint.
//
// Without a key, a client that lost the response gets 412 when it repeats
// its change. With Change.Done it can get the success instead.
package conditional
