// Package send sends webhooks: events of a service, to endpoints that its
// customers name.
//
// In the transaction of the change that an event tells of, [Event.Messages] makes
// one message of an outbox for each endpoint that wants it. A relay with a [Sink]
// delivers them. The sink looks the endpoint up at each attempt, so a changed URL,
// secret or state counts at once; signs with all secrets of the endpoint and the
// time of the attempt; and posts, once, to public addresses only, following no
// redirection.
//
// # What becomes of a message
//
//   - Any 2xx is a delivery. Customers must drop repetitions by the id in
//     webhook-id, which all attempts at an event have in common, at all endpoints.
//   - 410 disables the endpoint. So does failing for longer than
//     Config.DisableAfter without one delivery between.
//   - Everything else is tried again, by [Schedule] or whatever the route says,
//     and no sooner than a Retry-After asks for. After the last attempt the
//     message is dead.
//   - The messages of an endpoint that is disabled are dead when their turn comes,
//     without being sent. So are those of one that is not there.
//
// Dead messages are kept, as the relay's retention says. The causes of all failures
// begin with the endpoint, as in "webhook: endpoint ep_7: is disabled: gone", so
// that what one customer has missed can be redriven once the endpoint is mended:
//
//	semel outbox redrive --state dead --cause 'webhook: endpoint ep_7: *' --apply
//
// # Slow endpoints
//
// One endpoint has at most Config.MaxPerEndpoint of a relay's places, as long as it
// answers within a second; one that is slow or fails has fewer, down to one. Its
// other messages are put off meanwhile, which costs them no attempt.
//
// # Secrets
//
// No error, cause or observer is given a secret, a signature, a payload, or
// anything of a URL. What is stored of secrets, and how, is up to [Endpoints].
package send
