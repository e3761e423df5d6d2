// Package semelgin adapts a semelhttp middleware to gin, for routes or groups:
//
//	protect, err := semelhttp.New(config)
//	router.Group("/orders", authenticate, semelgin.New(protect)).POST("/:id/pay", pay)
//
// # What the handlers see
//
// Handlers after the adapter run on the request's *gin.Context: Next, Abort,
// FullPath and Param work as usual, and earlier middlewares see the keys and
// errors that handlers add. Only Request and Writer are replaced by semelhttp's
// until the adapter returns; see there for what a protected handler sees. After
// a replay or a refusal the context is aborted.
//
// gin reuses a context when its request is done, so the adapter waits until
// the handlers have returned. The preference respond-async is passed on to
// them and has no other effect.
//
// Unprotected requests run as they would without the adapter.
//
// # Order
//
//   - Authentication goes before the adapter, and so does everything that should
//     also see replays and refusals, such as an access log.
//   - Everything that contributes to the response goes after it: an earlier
//     middleware that renders c.Errors comes too late, because the response is
//     recorded by then. If handlers leave errors in c.Errors and no response, the
//     response is 500.
//   - gin.Recovery after the adapter makes a panic a 500, which is recorded and
//     replayed like any 500. A panic that leaves the adapter, for an earlier
//     gin.Recovery or for the server, leaves the outcome unknown, which is
//     reported to retries. If part of the response has been sent by then, the
//     connection is cut, so that the client sees that it is incomplete, even if
//     Recovery ends the panic.
package semelgin
