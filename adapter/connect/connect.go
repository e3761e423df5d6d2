package semelconnect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/adapter/internal/rpc"
	"github.com/semelhq/semel/semelhttp"
)

// Domain is that of the google.rpc.ErrorInfo in every refusal.
const Domain = rpc.Domain

// Config says how calls are protected. Functions must be safe for concurrent
// use.
type Config struct {
	// Guard executes and records. Required.
	Guard *semel.Guard

	// Scope says whose key a call's key is. Required. It is called for calls
	// with a well-formed key. An empty Operation means the procedure. If it
	// returns an error, nothing is executed; the call fails with the
	// *connect.Error in it, else with unauthenticated. It must not change req.
	Scope func(ctx context.Context, req connect.AnyRequest) (semel.Scope, error)

	// Protects reports whether a method is protected; other calls pass, with
	// or without a key. It is not called for methods of idempotency level
	// NO_SIDE_EFFECTS, which always pass. Default: all.
	Protects func(connect.Spec) bool

	// RequireKey refuses calls without a key. By default they pass unprotected.
	RequireKey bool
	// StrictKey refuses keys that are not a Structured Field String. See
	// semelhttp.ParseKey.
	StrictKey bool
	// KeyRules are further rules for keys. Default: none.
	KeyRules semel.KeyRules

	// Wait is how long a call waits for another with its identity that is
	// executing, before it fails with aborted. Default: not at all.
	Wait time.Duration

	// MaxResult is the largest reply that is recorded, message or error and
	// metadata together, in bytes. A larger one is returned to the call that
	// executed and leaves a tombstone. So does one over
	// semelhttp.DefaultMaxInline, 256 KiB, unless the store keeps results in
	// pieces, and one whose metadata alone exceeds that. The whole reply is in
	// memory, even for a replay. Default semelhttp.DefaultMaxResult, 32 MiB.
	MaxResult int

	// NoEffect reports whether a code by definition means that nothing was
	// processed. Default: unauthenticated and resource_exhausted.
	NoEffect func(connect.Code) bool
	// Indeterminate reports whether a code means that the effect may or may not
	// have happened. It takes precedence over NoEffect. Default: canceled,
	// deadline_exceeded and unavailable.
	Indeterminate func(connect.Code) bool
	// Release says of a code, where the claim lives in a transaction and what
	// the handler changed is therefore rolled back, that it is not recorded
	// either: there was no effect, and the key is free again. It matters to
	// transactional stores alone. Default: all but invalid_argument,
	// not_found, already_exists, permission_denied, failed_precondition,
	// aborted and out_of_range, which a retry would be told again.
	Release func(connect.Code) bool

	// Origin names the call for the audit trail. Default: as
	// semelhttp.DefaultOrigin.
	Origin func(connect.AnyRequest) semel.Origin
}

// Interceptor is a connect.Interceptor that protects the methods of handlers. In
// clients it does nothing.
type Interceptor struct {
	config Config
	server rpc.Server
}

var _ connect.Interceptor = (*Interceptor)(nil)

// New returns an interceptor, or one error that names everything wrong with c.
func New(c Config) (*Interceptor, error) {
	i := &Interceptor{config: c, server: rpc.Server{
		Guard: c.Guard, RequireKey: c.RequireKey, StrictKey: c.StrictKey, KeyRules: c.KeyRules,
		Wait: c.Wait, MaxResult: c.MaxResult,
	}}
	if f := c.NoEffect; f != nil {
		i.server.NoEffect = func(code rpc.Code) bool { return f(connect.Code(code)) }
	}
	if f := c.Indeterminate; f != nil {
		i.server.Indeterminate = func(code rpc.Code) bool { return f(connect.Code(code)) }
	}
	if f := c.Release; f != nil {
		i.server.Release = func(code rpc.Code) bool { return f(connect.Code(code)) }
	}
	if c.Origin == nil {
		i.config.Origin = func(req connect.AnyRequest) semel.Origin {
			return semelhttp.DefaultOrigin(&http.Request{Header: req.Header()})
		}
	}
	err := i.server.Validate()
	if c.Scope == nil {
		err = errors.Join(err, errors.New("field Scope is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("semelconnect: config: %w", err)
	}
	return i, nil
}

func (i *Interceptor) protects(spec connect.Spec) bool {
	return !spec.IsClient && spec.IdempotencyLevel != connect.IdempotencyNoSideEffects &&
		(i.config.Protects == nil || i.config.Protects(spec))
}

// WrapUnary implements connect.Interceptor.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if !i.protects(req.Spec()) {
			return next(ctx, req)
		}
		key, refused := i.server.Key(req.Header()[semelhttp.HeaderKey])
		if refused != nil {
			return nil, newError(refused, nil)
		}
		if key == "" {
			return next(ctx, req)
		}
		return i.protect(ctx, req, key, next)
	}
}

func (i *Interceptor) protect(ctx context.Context, req connect.AnyRequest, key string, next connect.UnaryFunc) (connect.AnyResponse, error) {
	message, ok := req.Any().(proto.Message)
	if !ok {
		return nil, newError(rpc.NotProtobuf(), nil)
	}
	scope, err := i.config.Scope(ctx, req)
	if err != nil {
		if ce, ok := errors.AsType[*connect.Error](err); ok {
			return nil, ce
		}
		return nil, newError(rpc.NoScope(), nil)
	}
	info, _ := connect.CallInfoForHandlerContext(ctx)
	reply := i.server.Do(ctx, rpc.Call{
		Procedure: req.Spec().Procedure, Key: key, Scope: scope, Origin: i.config.Origin(req), Request: message,
	}, func(ctx context.Context) rpc.Reply {
		collected := &callInfo{CallInfo: info, header: http.Header{}, trailer: http.Header{}}
		resp, err := next(&handlerContext{ctx, collected}, req)
		return collected.reply(resp, err)
	})
	if reply.Status != nil {
		// The error's own metadata would mix up headers and trailers.
		if info != nil {
			put(info.ResponseHeader(), reply.Header)
			put(info.ResponseTrailer(), reply.Trailer)
		}
		return nil, newError(reply.Status, rpc.Bare(reply.Err))
	}
	resp := &response{connect.NewResponse(&emptypb.Empty{}), reply.Message}
	put(resp.Header(), reply.Header)
	put(resp.Trailer(), reply.Trailer)
	return resp, nil
}

// WrapStreamingHandler implements connect.Interceptor. It refuses streaming
// calls of protected methods that have a key, and all of them if a key is
// required.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if i.protects(conn.Spec()) {
			if refused := i.server.Stream(conn.RequestHeader()[semelhttp.HeaderKey]); refused != nil {
				return newError(refused, nil)
			}
		}
		return next(ctx, conn)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// response is a reply whose message's type is known at run time only.
type response struct {
	connect.AnyResponse
	message proto.Message
}

func (r *response) Any() any { return r.message }

// handlerContext is an execution's context. What a handler sets by it is recorded
// before it is sent.
type handlerContext struct {
	context.Context
	info *callInfo
}

func (c *handlerContext) Value(key any) any {
	v := c.Context.Value(key)
	if info, ok := v.(connect.CallInfo); ok && c.info.CallInfo != nil && info == c.info.CallInfo {
		return c.info
	}
	return v
}

// callInfo collects what a handler sets by its context.
type callInfo struct {
	connect.CallInfo
	header, trailer http.Header
}

func (c *callInfo) ResponseHeader() http.Header  { return c.header }
func (c *callInfo) ResponseTrailer() http.Header { return c.trailer }

// reply is what the handler returned, the way connect would send it.
func (c *callInfo) reply(resp connect.AnyResponse, err error) rpc.Reply {
	r := rpc.Reply{Header: map[string][]string{}, Trailer: map[string][]string{}, Err: err}
	add(r.Header, c.header)
	add(r.Trailer, c.trailer)
	if err != nil {
		var meta http.Header
		r.Status, meta = statusOf(rpc.Bare(err))
		add(r.Header, meta)
		return r
	}
	add(r.Header, resp.Header())
	add(r.Trailer, resp.Trailer())
	r.Message, _ = resp.Any().(proto.Message)
	return r
}

// add adds the values of h under names as gRPC writes them.
func add(md map[string][]string, h http.Header) {
	for name, values := range h {
		name = strings.ToLower(name)
		md[name] = append(md[name], values...)
	}
}

func put(h http.Header, md map[string][]string) {
	for name, values := range md {
		for _, v := range values {
			h.Add(name, v)
		}
	}
}

// statusOf returns err's status and metadata as connect would send them.
func statusOf(err error) (*spb.Status, http.Header) {
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		code := connect.CodeUnknown
		switch {
		case errors.Is(err, context.Canceled):
			code = connect.CodeCanceled
		case errors.Is(err, context.DeadlineExceeded):
			code = connect.CodeDeadlineExceeded
		}
		ce = connect.NewError(code, err)
	}
	s := &spb.Status{Code: int32(ce.Code()), Message: ce.Message()}
	for _, d := range ce.Details() {
		s.Details = append(s.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
	}
	if connect.IsWireError(ce) { // metadata of another server
		return s, nil
	}
	return s, ce.Meta()
}

// newError makes an error of s. cause is for interceptors in front; nil if there
// is none.
func newError(s *spb.Status, cause error) *connect.Error {
	e := connect.NewError(connect.Code(s.GetCode()), &reason{s.GetMessage(), cause})
	for _, a := range s.GetDetails() {
		if d, err := connect.NewErrorDetail(a); err == nil {
			e.AddDetail(d)
		}
	}
	return e
}

type reason struct {
	message string
	cause   error
}

func (r *reason) Error() string { return r.message }
func (r *reason) Unwrap() error { return r.cause }
