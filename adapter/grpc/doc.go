// Package semelgrpc protects unary gRPC methods from double execution: of all
// calls of one method, by one actor, with one key in the metadata
// "idempotency-key", one is executed. The others get its recorded reply, or a
// status that says why not.
//
//	once, err := semelgrpc.New(semelgrpc.Config{Guard: guard, Scope: scope})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, once.Unary),
//		grpc.ChainStreamInterceptor(authenticateStream, once.Stream),
//	)
//
// The key follows the rules of semelhttp.ParseKey. Interceptors after this one
// belong to the execution and are replayed with it; those before it see every call.
//
// # What a handler sees
//
// A handler runs in the goroutine of its call, under a claim, and does not depend
// on the client. Its context keeps the values of the call's context, but does not
// end with the client or at the client's deadline, only at the policy's deadline
// or when the claim is lost. Header and trailer metadata that it sets are
// collected, sent when the record is durable, and replayed; SetSendCompressor
// does not work.
//
// # What is recorded
//
// Every status that a handler returns is final and recorded with its code,
// message and details, INTERNAL and UNKNOWN too, except:
//
//   - UNAUTHENTICATED and RESOURCE_EXHAUSTED mean that nothing was processed:
//     the status is passed on and the key is free again (Config.NoEffect).
//   - CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE, which handlers also pass on
//     from servers that they call, leave the outcome unknown: the client gets
//     OUTCOME_UNKNOWN, and nothing executes under the key before someone has resolved the record
//     (Config.Indeterminate).
//   - semel.NoEffect, semel.Final and semel.Indeterminate around the error take
//     precedence over its code.
//   - A panic leaves the outcome unknown and is passed on. With gRPC it ends the
//     process, unless an earlier interceptor recovers. A later interceptor that
//     recovers makes it a status like any other, which is recorded.
//
// If the claim is a transaction, only a success commits what the handler
// changed in it. For statuses that blame the request or the current state, such
// as NOT_FOUND, only the status is recorded. All others, such as INTERNAL and
// UNKNOWN, then had no effect: they are passed on and the key is free again
// (Config.Release). An indeterminate status becomes ROLLED_BACK.
//
// Replies of up to 32 MiB (Config.MaxResult) are recorded; larger ones leave a
// tombstone. A client accepts messages of up to 4 MiB unless it is configured
// otherwise (grpc.MaxCallRecvMsgSize): beyond that both the first reply and each
// replay fail.
//
// A replay has the metadata "idempotency-replayed: true"; all recorded replies
// have "idempotency-expires", an HTTP date. Replays need the response type in the
// program (protoregistry).
//
// # Refusals
//
// Each refusal carries a google.rpc.ErrorInfo of domain [Domain] with the reason
// below and the metadata "retry" (same-key, new-key, after-resolution, no), and,
// if the time is known, a google.rpc.RetryInfo.
//
//	KEY_MISSING, KEY_MALFORMED  INVALID_ARGUMENT
//	KEY_MISMATCH                INVALID_ARGUMENT     the key is that of another request
//	IN_PROGRESS                 ABORTED              the same key again, later
//	OUTCOME_UNKNOWN             FAILED_PRECONDITION  found on record: not to be re-sent before it is resolved
//	                            DEADLINE_EXCEEDED    this call's own execution ran out of time: likewise
//	                            UNKNOWN              or was cut off: likewise
//	RESULT_NOT_RETAINED         FAILED_PRECONDITION  completed, but there is nothing to replay
//	STORE_UNAVAILABLE           UNAVAILABLE          safe to re-send under the same key, and only that
//	ROLLED_BACK                 UNAVAILABLE          certainly no effect; safe to re-send
//	BUSY                        UNAVAILABLE          a bound of the guard is reached; safe to re-send
//	STREAM_NOT_PROTECTED        UNIMPLEMENTED        before any handler code
//	NOT_PROTOBUF                UNIMPLEMENTED
//	SCOPE_REFUSED               UNAUTHENTICATED      Config.Scope's error, if it is not a status
//	SCOPE_INVALID               INTERNAL
//
// # Same request?
//
// The method and the request message are compared, the message field by field,
// not by its bytes. If the message type has changed between two versions of the
// program, messages are not compared and only the key counts. Changes that do
// not affect fields and enums, such as the presence of a field, are ignored.
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
package semelgrpc
