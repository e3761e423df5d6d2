// Package wire sends exact bytes to an HTTP server and observes exactly what
// happens. It is the sending half of the probe and of the conformance command.
//
// One call is one decision, and one decision is one request on the wire: there
// are no retries, no redirects, no proxies from the environment, no cookies, no
// connection pool, and no header fields but those of the caller and the two
// that frame a request (Host and Content-Length). The bytes that go out are a
// function of the [Request] alone, so sending a Request twice repeats it to the
// byte.
//
// A [Sender] only talks to the hosts and ports it was given, and only as often
// as it was allowed to. Both are checked before anything touches the network,
// the look-up of a name included.
//
// What came of a request is an [Exchange]. Its [Delivery] says how far the
// request got, which is a fact about bytes and not about effects: whoever wants
// to know whether an effect happened has to look at the target's state.
package wire
