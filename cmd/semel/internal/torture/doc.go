// Package torture runs real processes under faults and checks that every
// request took effect once.
//
// Two gateways share one store and stand before an effect ledger, which puts
// each effect on disk before it responds. Clients send operations, retry them
// under the same key as the responses advise, and send some acknowledged ones again.
// A nemesis kills and pauses the processes and cuts connections on both sides of
// the gateways. Everything is written to a history, and the history, the ledger and
// the store are then checked against each other:
//
//	second-effect             a key has more than one effect
//	second-effect-of-claim    one claim caused more than one effect (on-crash retry)
//	responses-differ          acknowledgements of one key are not the same bytes, or not
//	                          those of the ledger
//	torn-response             a response came to its end, but is not whole
//	effect-missing            an effect reported to a client is not in the ledger
//	acknowledgement-lost      a key was acknowledged, and later is not
//	effect-after-refusal      every attempt was told "no effect", and there is one
//	unknown-without-cause     an outcome is unknown though only its client was cut off
//	stuck                     a key is in progress beyond its lease, or has no response
//	failed-start              a gateway ended before it listened
//	unexpected-response       a response that no client should see
//	effect-of-rolled-back     a message reports what was not committed
//	out-of-order              messages of one lane took effect in another order
//
// The last two are about shops: services that use all packages for services, on
// one PostgreSQL, with a remote that charges (ServeShop, ServeRemote). Their effects
// are lines of the remote's file, and rows in tables without a constraint that would
// prevent a second effect. An order is placed by requests under two keys, by a
// webhook and by a job, and every effect that it should have is counted.
//
// Some keys have a response that is not small: large, and recorded in pieces;
// over the limit, with its length announced and without; or a stream of events
// with the effect in its middle. A response of the last three forms is sent once, and
// acknowledges the key once its end has arrived. Later attempts are told that it was
// not retained, which also acknowledges the key. A response that is cut off does not.
//
// A run that did not see enough faults, retries and acknowledgements proves nothing:
// it is reported as inconclusive.
//
// The seed decides what the nemesis, the clients and the ledger choose. The machine
// decides when processes run, so a seed does not repeat a run exactly.
package torture
