// Package conditional keeps updates from getting lost. A change says which state
// it is meant for, by If-Match (RFC 9110 13) or otherwise, and takes effect in
// that state only: the check and the change are one statement.
//
// # The middleware
//
// New reads the precondition of a request that may change something, and hands it
// to the handler in its context. It does not evaluate it: between a look in front
// of the handler and the handler's change, somebody else's could come. Instead
//
//   - a malformed If-Match or If-None-Match is answered with 400,
//   - a request that must have a precondition and has none with 428,
//   - and where a handler would answer with success, or a redirection, without having
//     applied the precondition, its answer is replaced by 500.
//
// Answers to GET and HEAD are held against the preconditions of RFC 9110, in its
// order, once the handler has said which ETag and Last-Modified they have: then
// they are 304 or 412. A malformed field is ignored there.
// If-Range is the handler's to heed, as Range is.
//
// # The handler
//
// Apply makes one change, as a compare-and-set of the resource's version, and
// Table.Apply one transition of a state machine. Both apply the precondition that
// their context carries, and are of use without one: then a change is made on top
// of whatever is there, and never over what it has not seen. They work on any
// database, through two functions of the caller's with one statement each.
// Refuse answers for their errors.
//
// Outside of HTTP the version that a change is meant for can be given with Expect.
//
// # With an idempotency key
//
// The two mechanisms answer different questions: the key, whether this request has
// been executed; the precondition, whether it may be executed now. The
// idempotency middleware goes outside, so it answers first: a retry of a change
// that was made is answered from its record, though its precondition does not
// hold any more. A request that is refused for its precondition, by this package,
// leaves no record. Let RequestHeaders take part in the fingerprint.
//
// Without a key, a client that lost the answer sees 412 when it repeats its
// change. Change.Done can have it see the success instead.
package conditional
