// Package semelgin adapts a semelhttp middleware to gin, for routes or groups:
//
//	protect, err := semelhttp.New(config)
//	router.Group("/orders", authenticate, semelgin.New(protect)).POST("/:id/pay", pay)
//
// # What the handlers see
//
// Handlers behind the adapter run on the request's *gin.Context: Next, Abort,
// FullPath and Param work as usual, and middlewares in front see the keys and
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
//   - Authentication goes in front, and so does everything that should also
//     see replays and refusals, such as an access log.
//   - Everything that takes part in the answer goes behind: a middleware in
//     front that renders c.Errors comes too late, because the answer is on record
//     by then. Handlers that leave errors in c.Errors and no answer are answered
//     for with 500.
//   - gin.Recovery behind the adapter makes a panic a 500, which is recorded and
//     replayed like any 500. A panic that leaves the adapter, for gin.Recovery in
//     front of it or for the server, has left the outcome unknown: whoever
//     repeats the request is told so. If a part of the answer has been sent by
//     then, the connection is cut, such that the client sees that it is not the
//     whole, even where Recovery ends the panic.
package semelgin
