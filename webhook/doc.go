// Package webhook receives webhooks so that each event is processed once, and
// signs webhooks to be sent.
//
// Senders deliver an event again until they get a 2xx status, and sometimes after
// that. New makes a middleware over a semel.Guard that verifies a delivery's
// signature over the raw body, uses the id of its event as the key, and runs the
// handler under a claim, in the transaction if the store is transactional. It is
// the middleware of semelhttp with another source of keys, so the documentation
// of semelhttp about handlers and recorded responses applies. It must come before
// everything that reads the body.
//
// # What the sender is told
//
//   - The handler's 2xx status, once its record is durable; in a transaction,
//     after COMMIT. A later delivery gets the same response from the record,
//     without a body that could not be kept.
//   - Any other status of the handler. It means that the event was not
//     processed and must be delivered again: nothing is recorded, a transaction
//     is rolled back, and the next delivery runs the handler. So a handler must
//     respond with 2xx even to events that it ignores, and without a
//     transactional store it must not respond otherwise after it has had an
//     effect. If it cannot tell, it calls semelhttp.DeclareIndeterminate.
//   - 503 with Retry-After while another delivery of the event is being
//     processed, while the store is unavailable, and if a transaction was
//     rolled back. The status is not 409 because some senders give up after a
//     4xx.
//   - 500, and 503 from then on, if the outcome of the event is unknown,
//     because the handler panicked or its process died outside of a
//     transaction. The policy of the guard says what happens then; by default
//     the event waits until somebody settles it.
//   - 422 if an event with the same id and another body is on record. The
//     delivery is not processed.
//   - 403 if no signature matches or the time of signing is too far off, and
//     400 if a part is missing or malformed. The response contains the reason,
//     which is also passed to Config.Refused.
//   - 405 for methods other than POST, and 413 for a body over Config.MaxBody.
//
// # How long an event is known
//
// Longer than its sender may deliver it: New refuses a retention that is shorter
// than the sender's schedule of retries. The default is about twice as long. An
// event that is delivered again after that, by hand, is processed again.
//
// # Schemes
//
// Standard, Stripe and GitHub are schemes. Each supports several secrets at a
// time, for rotation, and an injected clock, and is also a signer. The scheme of
// another sender is a type with two methods.
package webhook
