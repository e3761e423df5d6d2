// Package semelconnect protects unary Connect methods from double execution,
// whichever protocol a client speaks to them: Connect, gRPC or gRPC-Web, in
// binary or in JSON. Of all calls of one method, by one actor, with one
// Idempotency-Key header, one is executed. The others get its recorded
// reply, or an error that says why not.
//
//	once, err := semelconnect.New(semelconnect.Config{Guard: guard, Scope: scope})
//	path, handler := paymentsv1connect.NewPaymentsHandler(payments,
//		connect.WithInterceptors(authenticate, once))
//
// The key follows the rules of semelhttp.ParseKey. Interceptors after this one
// belong to the execution and are replayed with it; those before it see every call.
//
// # What a handler sees
//
// A handler runs in the goroutine of its call, under a claim, and does not depend
// on the client. Its context keeps the values of the call's context, but does not
// end with the client or at the client's deadline, only at the policy's deadline
// or when the claim is lost. Headers and trailers that it sets, on its response,
// its error or through connect.CallInfoForHandlerContext, are collected, sent
// when the record is durable, and replayed.
//
// # What is recorded
//
// Every error that a handler returns is final and recorded with its code,
// message, details and metadata, internal and unknown ones too, except:
//
//   - unauthenticated and resource_exhausted mean that nothing was processed:
//     the error is passed on and the key is free again (Config.NoEffect).
//   - canceled, deadline_exceeded and unavailable, which handlers also pass on
//     from servers that they call, leave the outcome unknown: the client gets
//     OUTCOME_UNKNOWN, and nothing executes under the key before someone has resolved the record
//     (Config.Indeterminate).
//   - semel.NoEffect, semel.Final and semel.Indeterminate around the error take
//     precedence over its code.
//   - A panic leaves the outcome unknown and is passed on. Put recovery
//     (connect.WithRecover) before this interceptor: after it, it makes the panic an
//     error like any other, which is recorded.
//
// If the claim is a transaction, only a success commits what the handler
// changed in it. For errors that blame the request or the current state, such as
// not_found, only the error is recorded. All others, such as internal and
// unknown, then had no effect: they are passed on and the key is free again
// (Config.Release). An indeterminate error becomes ROLLED_BACK.
//
// Replies of up to 32 MiB (Config.MaxResult) are recorded; larger ones leave a
// tombstone.
//
// A replay has the header "Idempotency-Replayed: true"; all recorded replies have
// "Idempotency-Expires", an HTTP date. Replays need the response type in the
// program (protoregistry).
//
// # Refusals
//
// Each refusal carries a google.rpc.ErrorInfo of domain [Domain] with the reason
// below and the metadata "retry" (same-key, new-key, after-resolution, no), and,
// if the time is known, a google.rpc.RetryInfo.
//
//	KEY_MISSING, KEY_MALFORMED  invalid_argument
//	KEY_MISMATCH                invalid_argument     the key is that of another request
//	IN_PROGRESS                 aborted              the same key again, later
//	OUTCOME_UNKNOWN             failed_precondition  found on record: not to be re-sent before it is resolved
//	                            deadline_exceeded    this call's own execution ran out of time: likewise
//	                            unknown              or was cut off: likewise
//	RESULT_NOT_RETAINED         failed_precondition  completed, but there is nothing to replay
//	STORE_UNAVAILABLE           unavailable          safe to re-send under the same key, and only that
//	ROLLED_BACK                 unavailable          certainly no effect; safe to re-send
//	BUSY                        unavailable          a bound of the guard is reached; safe to re-send
//	STREAM_NOT_PROTECTED        unimplemented        before any handler code
//	NOT_PROTOBUF                unimplemented
//	SCOPE_REFUSED               unauthenticated      Config.Scope's error, if it is not a *connect.Error
//	SCOPE_INVALID               internal
//
// # Same request?
//
// The method and the request message are compared, the message field by field,
// not by its bytes: JSON and binary are the same request. If the message type
// has changed between two versions of the program, messages are not compared
// and only the key counts. Changes that do not affect fields and enums, such
// as the presence of a field, are ignored.
//
// A scalar that is set to its default equals one that is not set, even in proto2
// and with optional: which of the two is sent depends on the schema version that
// a client was built with, and its retry may come from the next version. So if a
// method distinguishes "set to zero" from "leave unchanged", and a client uses
// one key for both, the second gets the result of the first. Use a
// google.protobuf.FieldMask, a oneof or a wrapper message instead: their
// presence is compared.
//
// Messages in a google.protobuf.Any, and unknown fields, are compared by their
// bytes.
package semelconnect
