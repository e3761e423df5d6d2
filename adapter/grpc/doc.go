// Package semelgrpc protects unary gRPC methods from double execution: of all
// calls of one method, by one actor, with one key in the metadata
// "idempotency-key", one is executed. The others are answered with its recorded
// reply, or with a status that says what is in the way.
//
//	once, err := semelgrpc.New(semelgrpc.Config{Guard: guard, Scope: scope})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, once.Unary),
//		grpc.ChainStreamInterceptor(authenticateStream, once.Stream),
//	)
//
// The key follows the rules of semelhttp.ParseKey. Interceptors behind this one
// belong to the execution and are replayed with it; those in front see every call.
//
// # What a handler sees
//
// It runs in the goroutine of its call, under a claim, and does not depend on the
// client: its context keeps the values of the call's, but ends neither with the
// client nor at the client's deadline, only at the policy's or when the claim is
// lost. Header and trailer metadata that it sets are collected, sent when the
// record is durable, and replayed; SetSendCompressor does not work.
//
// # What is recorded
//
// Every status that a handler returns is final and recorded with its code,
// message and details, INTERNAL and UNKNOWN too, except:
//
//   - UNAUTHENTICATED and RESOURCE_EXHAUSTED mean that nothing was processed:
//     the status is passed on and the key is free again (Config.NoEffect).
//   - CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE, which handlers also hand on
//     from servers that they call, mean that nobody knows: the client is told so,
//     and nothing executes under the key before someone resolved the record
//     (Config.Indeterminate).
//   - semel.NoEffect, semel.Final and semel.Indeterminate around the error go
//     before what its code means.
//   - A panic leaves the outcome unknown and goes on up. gRPC has the process
//     end with it, unless an interceptor in front recovers. One behind this one
//     makes it a status like any other, which is recorded.
//
// Where the claim lives in a transaction, only a success commits what the handler
// changed in it. Of statuses that blame the request or the state it met, as
// NOT_FOUND does, the status alone is recorded. All others, such as INTERNAL and
// UNKNOWN, have had no effect then: they are passed on and the key is free again
// (Config.Release). One that is indeterminate is answered as ROLLED_BACK.
//
// Replies of up to 32 MiB (Config.MaxResult) are recorded; larger ones leave a
// tombstone. A client takes messages of up to 4 MiB unless it says otherwise
// (grpc.MaxCallRecvMsgSize): beyond that it fails alike at the first reply and at
// each replay.
//
// A replay has the metadata "idempotency-replayed: true"; all recorded replies
// have "idempotency-expires", an HTTP date. Replays need the response type in the
// program (protoregistry).
//
// # What a refused call is told
//
// Each refusal carries a google.rpc.ErrorInfo of domain [Domain] with the reason
// below and the metadata "retry" (same-key, new-key, after-resolution, no), and
// where it is known when, a google.rpc.RetryInfo.
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
//	SCOPE_REFUSED               UNAUTHENTICATED      Config.Scope's error, if it is no status
//	SCOPE_INVALID               INTERNAL
//
// # Same request?
//
// What is compared is the method and the request message, field by field, not
// its bytes. If the message type has changed between two versions of the program
// it is not compared: then the key alone decides. Changes that leave fields and
// enums as they are, such as the presence of a field, do not count.
//
// A scalar that was set to its default is like one that was not set, in proto2
// and with optional too: which of the two is sent depends on the version of the
// schema that a client was built with, and its retry may come from the next. So
// where a method tells "set it to zero" from "leave it alone", and a client uses
// one key for both, the second is answered with the result of the first. Say it
// with a google.protobuf.FieldMask, a oneof or a wrapper message: these are
// compared as they are set.
//
// Messages that a google.protobuf.Any holds, and unknown fields, are compared by
// their bytes.
package semelgrpc
