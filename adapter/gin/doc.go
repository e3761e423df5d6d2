// Package semelgin puts a semelhttp middleware into a gin router, for routes or
// groups:
//
//	protect, err := semelhttp.New(config)
//	once, err := semelgin.New(protect)
//	router.Group("/orders", authenticate, once).POST("/:id/pay", pay)
//
// # What the handlers see
//
// A protected handler may run longer than the request that started it, and gin
// gives the request's *gin.Context to another request as soon as this one is
// answered. So what is registered behind the adapter runs on a *gin.Context of
// its own, which is never reused. It starts with the parameters, the route, the
// keys, the errors and the request of the original, and with the same rest of
// the chain: Next, Abort, FullPath and HandlerNames work as usual. Requests that
// semelhttp lets pass unprotected run on gin's context, as without the adapter.
//
// Keys and errors that the handlers add are handed back to the request's context
// if the client is still there. After a replay or a refusal the request's
// context is aborted.
//
// # Order
//
//   - Authentication goes in front, and so does everything that shall also see
//     replays and refusals, such as an access log.
//   - Everything that takes part in the answer goes behind: a middleware in
//     front that renders c.Errors comes too late, because the answer is on record
//     by then. Handlers that leave errors in c.Errors and no answer are answered
//     for with 500.
//   - gin.Recovery behind the adapter makes a panic a 500, which is recorded and
//     replayed like any 500. In front of it (or nowhere) a panic leaves the
//     outcome unknown, and the client is told so; Recovery still sees the panic.
//
// A handler that waits for c.Request.Context or c.Stream is told about the
// client only where semelhttp does that; see there.
package semelgin
