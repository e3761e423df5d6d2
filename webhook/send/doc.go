// Package send sends webhooks: events of a service, to endpoints chosen by its
// customers.
//
// In the transaction of the change that an event announces, [Event.Messages] makes
// one outbox message for each endpoint that wants it. A relay with a [Sink]
// delivers them. At each attempt the sink looks up the endpoint, so that a new
// URL, secret or state applies at once, signs with all secrets of the endpoint and
// the current time, and makes one POST request, to public addresses only and
// without following redirects.
//
// # What becomes of a message
//
//   - Any 2xx status is a delivery. Customers must drop repetitions by the id
//     in webhook-id, which is the same in all attempts at an event and at all
//     endpoints.
//   - The status 410 disables the endpoint. So does failing for longer than
//     Config.DisableAfter without a delivery in between.
//   - Any other result is tried again, by [Schedule] or the route's own
//     schedule, and no sooner than Retry-After asks for. After the last attempt
//     the message is dead.
//   - The messages of an endpoint that is disabled or does not exist are dead
//     when their turn comes, without being sent.
//
// Dead messages are kept, as the relay's retention says. The causes of all failures
// begin with the endpoint, as in "webhook: endpoint ep_7: is disabled: gone", so
// that the messages that a customer has missed can be redriven after the endpoint
// has been repaired:
//
//	semel outbox redrive --state dead --cause 'webhook: endpoint ep_7: *' --apply
//
// # Slow endpoints
//
// An endpoint has at most Config.MaxPerEndpoint concurrent deliveries, as long as
// it responds within a second. An endpoint that is slow or fails has fewer, down to
// one. Its other messages are postponed, which does not count as an attempt.
//
// # Secrets
//
// Errors, causes and observers get no secrets, signatures, payloads or parts of
// URLs. How secrets are stored is up to [Endpoints].
package send
