// Package semelchi lets a semelhttp middleware be used in a chi router:
//
//	protect, err := semelhttp.New(config)
//	router.With(authenticate, semelchi.New(protect)).Post("/orders/{id}/pay", pay)
//
// chi's middlewares are those of net/http, and protect works without this
// package until a client goes away: then the handler runs on, while chi gives
// the request's routing context, where URLParam looks, to another request. New
// gives what is behind it a routing context of its own.
//
// Use it behind the routing, by With or in a Group: Route is known there. By Use
// it stands in front of the router's routing, and Route is not yet the whole
// pattern.
package semelchi
