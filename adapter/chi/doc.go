// Package semelchi lets a semelhttp middleware be used in a chi router:
//
//	protect, err := semelhttp.New(config)
//	router.With(authenticate, semelchi.New(protect)).Post("/orders/{id}/pay", pay)
//
// chi's middlewares are those of net/http, and protect works without this
// package until a client prefers not to wait (respond-async, where there are
// semelhttp.Resources): then the handler goes on when its request has been
// answered, while chi gives the request's routing context, where URLParam looks,
// to another request. New gives such a handler a routing context of its own.
//
// Use it behind the routing, by With or in a Group: Route is known there. By Use
// it stands in front of the router's routing, and Route is not yet the whole
// pattern.
package semelchi
