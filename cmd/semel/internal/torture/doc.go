// Package torture runs real processes under faults and checks that every
// request took effect once.
//
// Two gateways share one store and stand before an effect ledger, which puts
// each effect on disk before it responds. Clients send operations, retry them
// under the same key as the responses advise, and ask again for what has been
// acknowledged. A nemesis kills and pauses the processes and cuts connections on
// both sides of the gateways. Everything is written into a history, and the
// history, the ledger and the store are then checked against each other:
//
//	second-effect             a key has more than one effect
//	second-effect-of-claim    one claim caused more than one effect (on-crash retry)
//	answers-differ            an acknowledgement is not, byte for byte, what was acknowledged
//	                          before, or what the ledger responded
//	torn-answer               a response came to its end, but is not the whole response
//	effect-missing            an effect that was reported to a client is not in the ledger
//	acknowledgement-lost      a key was acknowledged, and later is not
//	effect-after-refusal      every attempt was told "no effect", and there is one
//	unknown-without-cause     an outcome is unknown though nothing hit its execution but its client
//	stuck                     a key is in progress beyond its lease, or its response does not come
//	failed-start              a gateway ended before it listened
//	unexpected-answer         a response that no client of these requests should see
//	effect-of-rolled-back     a message reports what was not committed
//	out-of-order              messages of one lane took effect in another order
//
// The last two are about shops: services that use all packages for services, on
// one PostgreSQL, with a remote that charges (ServeShop, ServeRemote). Their effects
// are rows, in tables without a constraint that would keep anything from happening
// twice, and lines of the remote's file. An order is placed by requests under two
// keys, by a webhook and by a job, and every effect that it should have is counted.
//
// Some keys have a response that is not small: large, and recorded in pieces;
// over the limit, with its length announced and without; or a stream of events
// with the effect in its middle. Of the last three the whole response is sent once,
// and is an acknowledgement once its end has come. Later attempts are told that it
// was not retained, which is one too. A response that is cut off does not count.
//
// A run that did not see enough faults, retries and acknowledgements proves
// nothing, and says so: it is inconclusive.
//
// The seed decides what the nemesis, the clients and the ledger choose; when
// processes get to run is up to the machine, so a seed does not repeat a run
// exactly.
package torture
