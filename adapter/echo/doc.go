// Package semelecho adapts a semelhttp middleware to Echo (v4), for routes or
// groups:
//
//	protect, err := semelhttp.New(config)
//	e.POST("/orders/:id/pay", pay, authenticate, semelecho.New(protect))
//
// # What the handlers see
//
// Handlers after the adapter run on the request's Context, even if an earlier
// middleware has set a Context type of your own. Earlier middlewares see the values
// that handlers set. Only Request and Response are replaced by semelhttp's until
// the adapter returns; see there for what a protected handler sees. On a replay or
// a refusal the handler is not called.
//
// Functions that were registered with Response.Before and Response.After before
// the adapter run when the response is sent to the client, even for a
// replay or a refusal; those registered after it run when the handler
// responds, and their changes to the header are recorded.
//
// Echo reuses a Context when its request is done, so the adapter waits until
// the handler has returned. The preference respond-async is passed on to it
// and has no other effect.
//
// Unprotected requests run as they would without the adapter.
//
// # Errors and order
//
// An error that a protected handler returns is rendered by Echo's
// HTTPErrorHandler inside the adapter, so that the rendered response is
// recorded and replayed. Middlewares before the adapter see no error. An
// error that HTTPErrorHandler does not respond to gives 500.
//
// Authentication goes before the adapter, and so does everything that should also see
// replays and refusals, such as an access log. Everything that contributes to
// the response goes after it.
//
// Echo's Recover after the adapter makes a panic a 500, which is recorded and
// replayed like any 500. A panic that leaves the adapter, for an earlier Recover
// or for the server, leaves the outcome unknown, which is reported to retries.
// If part of the response has been sent by then, the connection is cut, so that
// the client sees that it is incomplete, even if Recover ends the panic.
package semelecho
