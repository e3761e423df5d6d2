// Package conformance checks from outside that a server keeps the HTTP contract
// of protected operations, case by case: what happens to a repeated key, to a
// missing one, to a duplicate in flight, and so on, and how each is answered.
//
// The server must offer a test endpoint: one protected operation whose requests
// say what it is to do. [Endpoint] is one for servers in Go; in other languages it
// takes some forty lines:
//
//	POST <url>   protected. The body is a JSON object:
//	             case    names the test; effects are counted by it. Required.
//	             hold    wait, before the effect, until the case is released
//	             busy    answer the first n requests of the case with 429 and
//	                     without an effect
//	             abort   have the effect, then cut the connection
//	             stream  answer with an event stream (text/event-stream)
//	             status  of the response; 201 if it is left out
//	             Otherwise count one effect, and answer with the status, the
//	             header lines "X-Conformance: a" and "X-Conformance: b", and a
//	             body that is never the same twice; 204 has none.
//	GET <url>?case=C           {"entered": n, "effects": n} of the case
//	GET <url>?case=C&release=1 releases it
//
// "entered" counts the requests that have reached the operation.
package conformance
