// Package webhook receives webhooks and processes each event once. It also
// signs webhooks that are sent.
//
// Senders redeliver an event until they see a 2xx, and sometimes after that. New
// returns a middleware over a semel.Guard that verifies a delivery's signature on
// the raw body, uses the id of its event as the key, and runs the handler under a
// claim, in the transaction of a transactional store. It is semelhttp's
// middleware with another source of keys, so what semelhttp says about handlers
// and recorded responses holds here too. Put it in front of everything that reads
// the body.
//
// # What the sender is told
//
//   - The handler's 2xx, once its record is durable; in a transaction, after
//     COMMIT. A later delivery gets the same 2xx from the record, without its
//     body if that could not be kept.
//   - Any other status of the handler's. It means that the event was not processed
//     and should be redelivered: nothing is recorded, a transaction is rolled
//     back, and the next delivery runs the handler. So a handler must respond with
//     2xx even to events that it does not need. Unless the store is transactional,
//     it must not respond with anything else once it has had an effect. If it
//     cannot tell, it calls semelhttp.DeclareIndeterminate.
//   - 503 with Retry-After while another delivery of the event is being
//     processed, while the store is unavailable, and if a transaction was rolled
//     back. It is not 409, because some senders never redeliver after a 4xx.
//   - 500, and 503 from then on, if the outcome is unknown: the handler panicked,
//     or its process died, outside a transaction. The guard's policy decides what
//     happens then: by default nothing, until somebody has settled it.
//   - 422 if the id is that of an event with another body. The delivery is
//     not processed.
//   - 403 if no signature matches, or the time of signing is too far off; 400 if
//     a part is missing or malformed. The response says why, and so does
//     Config.Refused.
//   - 405 for everything but POST; 413 for a body over Config.MaxBody.
//
// # How long an event is known
//
// An event is remembered for longer than its sender may deliver it: New refuses
// a retention that is shorter than the sender's whole schedule, and by default
// makes it about twice as long. An event that is redelivered later, by hand, is
// processed again.
//
// # Schemes
//
// Standard, Stripe and GitHub are schemes, each with several secrets at a time for
// rotation, and with a clock that can be replaced. They are also signers. A scheme
// for another sender is a type with two methods.
package webhook
