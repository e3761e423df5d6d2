// Package semelclient sends requests that take effect once. It is the client's side
// of the Idempotency-Key header; package semelhttp is the server's.
//
// A [Transport] is an http.RoundTripper for any http.Client, or any SDK that takes
// one. It adds a key to each request that needs one and retries the request under
// that key while this is safe. Its [Error] says whether the request may have taken
// effect, and has the [Operation] to retry with.
//
// An Operation in a context makes several calls one operation: [NewOperation] has a
// fresh key, [WithKey] a key that the caller has kept, and [WithStep] a key for a
// call that a protected operation makes to another service. The clients in
// adapter/grpc and adapter/connect use the same context.
package semelclient
