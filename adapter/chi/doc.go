// Package semelchi lets a semelhttp middleware be used in a chi router:
//
//	protect, err := semelhttp.New(config)
//	router.With(authenticate, semelchi.New(protect)).Post("/orders/{id}/pay", pay)
//
// chi uses net/http middlewares, and protect works without this package unless a
// client prefers not to wait (respond-async, if there are semelhttp.Resources).
// Then the handler continues after the response was sent, while chi gives the
// request's routing context, which URLParam reads, to another request. New gives
// such a handler a routing context of its own.
//
// Use it with With or in a Group, after routing, where Route is known. With Use
// it runs before routing, and Route is not yet the whole pattern.
package semelchi
