// Package semelecho puts a semelhttp middleware into an Echo (v4) router, for
// routes or groups:
//
//	protect, err := semelhttp.New(config)
//	once, err := semelecho.New(semelecho.Config{Protect: protect})
//	e.POST("/orders/:id/pay", pay, authenticate, once)
//
// # What the handlers see
//
// A protected handler may run longer than the request that started it, and Echo
// gives the request's Context to another request as soon as this one is
// answered. So what is behind the adapter runs on a Context of its own, which is
// never reused. It starts with the parameters, the path, the values, the logger
// and the request of the original. What a handler sets there is not handed back.
// Requests that semelhttp lets pass unprotected run on Echo's Context, as without
// the adapter. A Context type of your own needs Config.Wrap.
//
// # Errors and order
//
// An error that a protected handler returns is rendered by Echo's
// HTTPErrorHandler on the handler's own Context, so that the rendered answer is
// what is recorded and replayed. In front of the adapter there is no error any
// more. An error that HTTPErrorHandler does not answer gives 500.
//
// Authentication and what shall also see replays and refusals, such as an access
// log, goes in front; everything that takes part in the answer goes behind.
// Echo's Recover behind the adapter makes a panic a 500, which is recorded and
// replayed like any 500. In front of it (or nowhere) a panic leaves the outcome
// unknown, and the client is told so; Recover still sees the panic.
package semelecho
