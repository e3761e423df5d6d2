// Package webhook receives webhooks such that each event is processed once, and
// signs those that are sent.
//
// Senders deliver an event again until they see a 2xx, and at times after that.
// New makes a middleware over a semel.Guard that checks a delivery's signature on
// the raw body, takes the id of its event for the key, and runs the handler under
// a claim, in the transaction of a transactional store. It is semelhttp's, with
// another source of keys, so what semelhttp says of handlers and recorded answers
// holds here too. It goes in front of everything that reads the body.
//
// # What the sender is told
//
//   - The handler's 2xx, once its record is durable; in a transaction, after
//     COMMIT. A later delivery is answered with the same 2xx from the record. A
//     body that could not be kept is left out of that.
//   - Any other status of the handler's. It says that the event was not processed
//     and is to come again: nothing is recorded, a transaction is rolled back, and
//     the next delivery runs the handler. So a handler must answer 2xx also for
//     events that it does not care for, and where a store is not transactional it
//     must not answer otherwise once it has had an effect. If it cannot tell, it
//     calls semelhttp.DeclareIndeterminate.
//   - 503 with Retry-After while another delivery of the event is being processed,
//     while the store cannot be asked, and where a transaction was rolled back.
//     Some senders never come again after a 4xx, so it is no 409.
//   - 500, and 503 from then on, where nobody knows what came of the event: the
//     handler panicked, or its process died, outside of a transaction. What is done
//     about that is up to the policy of the guard: by default nothing, before
//     somebody has settled it.
//   - 422 where the id is that of an event with another body, which is not
//     processed.
//   - 403 where no signature matches, or the time of signing is too far off; 400
//     where a part is missing or malformed. The reason goes with it, and to
//     Config.Refused.
//   - 405 for everything but POST; 413 for a body over Config.MaxBody.
//
// # How long an event is known
//
// Longer than its sender may deliver it: New refuses a retention that is shorter
// than the sender's whole schedule, and by default makes it about twice as long.
// An event that is delivered again later, by hand, is processed again.
//
// # Schemes
//
// Standard, Stripe and GitHub are schemes, each with several secrets at a time for
// a rotation, and with an injected clock. They are also signers. Another sender's
// scheme is a type with two methods.
package webhook
