// Package semelecho puts a semelhttp middleware into an Echo (v4) router, for
// routes or groups:
//
//	protect, err := semelhttp.New(config)
//	e.POST("/orders/:id/pay", pay, authenticate, semelecho.New(protect))
//
// # What the handlers see
//
// What is behind the adapter runs on the request's Context, as ever, and so on a
// Context type of your own where there is one in front. Values that handlers set
// are there for the middlewares in front. Only Request and Response are
// semelhttp's meanwhile; see there for what a protected handler sees. They are the
// request's own again when the adapter returns. After a replay or a refusal the
// handler has not been called.
//
// Functions that were registered with Response.Before and Response.After in
// front of the adapter run when the client is answered, also with a replay or
// a refusal; those registered behind it run when the handler answers, and what
// they do to the header is recorded.
//
// Echo uses a Context again as soon as its request is answered, so a protected
// request is not answered before its handler has returned. The preference
// respond-async is passed on to it and has no other effect.
//
// Requests that semelhttp lets pass unprotected run as without the adapter.
//
// # Errors and order
//
// An error that a protected handler returns is rendered by Echo's
// HTTPErrorHandler behind the adapter, so that the rendered answer is what is
// recorded and replayed. In front of the adapter there is no error any more. An
// error that HTTPErrorHandler does not answer gives 500.
//
// Authentication and what shall also see replays and refusals, such as an access
// log, goes in front; everything that takes part in the answer goes behind.
//
// Echo's Recover behind the adapter makes a panic a 500, which is recorded and
// replayed like any 500. A panic that leaves the adapter, for Recover in front of
// it or for the server, has left the outcome unknown: whoever repeats the request
// is told so. If a part of the answer has been sent by then, the connection is
// cut, such that the client sees that it is not the whole, even where Recover
// ends the panic.
package semelecho
