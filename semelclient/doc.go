// Package semelclient sends requests that take effect once: the client's side
// of Idempotency-Key.
//
// [Transport] is an http.RoundTripper for any http.Client, or any SDK that takes
// one. It gives each request that needs a key one, tries it again under that key
// as long as this is safe, and says in its [Error] whether the request may have
// taken effect, and with which key to come back.
//
// An [Operation] in the context makes several calls tries of one operation:
// [NewOperation] has a fresh key, [WithKey] one that the caller has kept, and
// [WithStep] one for a call that a protected operation makes itself. The clients
// of adapter/grpc and adapter/connect go by the same context.
//
// Package semelhttp is the server's side.
package semelclient
