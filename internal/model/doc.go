// Package model is the record's life as a small model that is explored
// exhaustively: every interleaving of two owners with two attempts each, the
// store, the network, the outside world and an operator, on one identity in
// one store. It holds the store's contract against the guard's use of it
// before either is a matter of SQL or HTTP.
//
// # What is in it
//
// An owner is a process that executes attempts as the guard does: begin, then
// the effect, then complete, release or hold; renewals; a deadline at which it
// holds a record but goes on; a begin given up and cleaned up after. Its
// second attempt is the client's retry. Between any two of its steps an owner
// may crash, which takes all it knew, or be paused: in an interleaving
// model a pause is another party's step coming first, so an owner that goes on
// after its lease lapsed and someone else moved in is a zombie. A call's
// request may get through without its answer, or late, when the owner has long
// gone on. A lease lapses at any point; retention ends; expired records are
// swept; an operator looks at open records, and acts on what was seen only
// later.
//
// The effect is outside: a request travels to its owner and takes effect, or
// is refused, or is lost, and the answer may be lost too. Under the policy
// retry its owner is idempotent; under hold and reconcile it is not.
//
// "Exhaustive" means: every run within these bounds, and within the number of
// rare events that Model.Faults allows in one run.
//
// # What is taken for granted
//
// No store can call back a request that has been sent, and no fence stops a
// paused owner from sending one later. Three assumptions stand for what
// the software cannot enforce. They are limits, to be told to users;
// TestAssumptions shows what breaks without each:
//
//   - An operator, or a reconciliation, takes "absent" for *no effect* only
//     when every attempt that was granted the record is over and no request
//     of it is under way: its deadline and the settling time have passed. The
//     record must have been marked unknown before anyone looked, so that it
//     cannot be revived in between; that much the stores enforce.
//   - A record's retention outlasts its executions.
//   - Under the policy retry the effect's owner is idempotent.
//
// An operator who decides to execute again where the effect has happened, or
// still may, asks for one more. The model counts it as allowed.
//
// Fingerprints, waiting and the transactional mode are not modelled: the first
// two change no record, and a transaction is the case without the steps between.
package model
