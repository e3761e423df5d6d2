package semelgrpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/adapter/internal/rpc"
	"github.com/semelhq/semel/semelhttp"
)

// Names in metadata.
const (
	MetadataKey      = rpc.MetadataKey
	MetadataReplayed = rpc.MetadataReplayed
	MetadataExpires  = rpc.MetadataExpires
)

// Domain is that of the google.rpc.ErrorInfo in every refusal.
const Domain = rpc.Domain

// Config says how calls are protected. Functions must be safe for concurrent
// use.
type Config struct {
	// Guard executes and records. Required.
	Guard *semel.Guard

	// Scope says whose key a call's key is. Required. It is called for calls with
	// a well-formed key. An empty Operation means the method. If it returns an
	// error nothing is executed; the caller gets that error if it is a status,
	// else UNAUTHENTICATED. req must not be changed.
	Scope func(ctx context.Context, method string, req proto.Message) (semel.Scope, error)

	// Protects says which methods are protected, by their full names,
	// "/package.Service/Method"; calls of others pass, with or without a key.
	// Default: all but those that are declared, in a file that the program
	// knows, with idempotency_level NO_SIDE_EFFECTS.
	Protects func(method string) bool

	// RequireKey refuses calls without a key. By default they pass unprotected.
	RequireKey bool
	// StrictKey refuses keys that are not a Structured Field String. See
	// semelhttp.ParseKey.
	StrictKey bool
	// KeyRules are further rules for keys. Default: none.
	KeyRules semel.KeyRules

	// Wait is how long a call waits for another of its identity that is executing,
	// before it gets ABORTED. Default: not at all.
	Wait time.Duration

	// MaxResult is the largest reply that is recorded, message or status and
	// metadata together, in bytes. A larger one is given to the call that
	// executed and leaves a tombstone. So does one over
	// semelhttp.DefaultMaxInline, 256 KiB, on a store that keeps no pieces, or
	// whose metadata alone is over that. A reply is in memory as a whole, at a
	// replay too. Default semelhttp.DefaultMaxResult, 32 MiB.
	MaxResult int

	// NoEffect says of a code that it means by definition that nothing was
	// processed. Default: UNAUTHENTICATED and RESOURCE_EXHAUSTED.
	NoEffect func(codes.Code) bool
	// Indeterminate says of a code that the effect may or may not have
	// happened. It wins over NoEffect. Default: CANCELLED, DEADLINE_EXCEEDED
	// and UNAVAILABLE.
	Indeterminate func(codes.Code) bool
	// Release says of a code, where the claim lives in a transaction and what
	// the handler changed is therefore rolled back, that it is not recorded
	// either: there was no effect, and the key is free again. It matters to
	// transactional stores alone. Default: all but INVALID_ARGUMENT,
	// NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION,
	// ABORTED and OUT_OF_RANGE, which a retry would be told again.
	Release func(codes.Code) bool

	// Origin names the call for the audit trail. Default: the metadata
	// x-request-id and traceparent, read like semelhttp.DefaultOrigin does.
	Origin func(context.Context) semel.Origin
}

// Interceptor protects the methods of a server.
type Interceptor struct {
	config Config
	server rpc.Server
}

// New returns an interceptor, or one error that names everything wrong with c.
func New(c Config) (*Interceptor, error) {
	i := &Interceptor{config: c, server: rpc.Server{
		Guard: c.Guard, RequireKey: c.RequireKey, StrictKey: c.StrictKey, KeyRules: c.KeyRules,
		Wait: c.Wait, MaxResult: c.MaxResult,
	}}
	if f := c.NoEffect; f != nil {
		i.server.NoEffect = func(code rpc.Code) bool { return f(codes.Code(code)) }
	}
	if f := c.Indeterminate; f != nil {
		i.server.Indeterminate = func(code rpc.Code) bool { return f(codes.Code(code)) }
	}
	if f := c.Release; f != nil {
		i.server.Release = func(code rpc.Code) bool { return f(codes.Code(code)) }
	}
	if c.Protects == nil {
		i.config.Protects = func(method string) bool { return !rpc.NoSideEffects(method) }
	}
	if c.Origin == nil {
		i.config.Origin = defaultOrigin
	}
	err := i.server.Validate()
	if c.Scope == nil {
		err = errors.Join(err, errors.New("field Scope is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("semelgrpc: config: %w", err)
	}
	return i, nil
}

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !i.config.Protects(info.FullMethod) {
		return handler(ctx, req)
	}
	key, refused := i.server.Key(metadata.ValueFromIncomingContext(ctx, MetadataKey))
	if refused != nil {
		return nil, status.ErrorProto(refused)
	}
	if key == "" {
		return handler(ctx, req)
	}
	message := asProto(req)
	if message == nil {
		return nil, status.ErrorProto(rpc.NotProtobuf())
	}
	scope, err := i.config.Scope(ctx, info.FullMethod, message)
	if err != nil {
		if s, ok := status.FromError(err); ok {
			return nil, s.Err()
		}
		return nil, status.ErrorProto(rpc.NoScope())
	}
	reply := i.server.Do(ctx, rpc.Call{
		Procedure: info.FullMethod, Key: key, Scope: scope, Origin: i.config.Origin(ctx), Request: message,
	}, func(ctx context.Context) rpc.Reply {
		collected := &collector{method: info.FullMethod}
		resp, err := handler(grpc.NewContextWithServerTransportStream(ctx, collected), req)
		return collected.reply(resp, err)
	})

	// These fail if the call is over. Then there is nobody left to tell.
	_ = grpc.SetHeader(ctx, metadata.MD(reply.Header))
	_ = grpc.SetTrailer(ctx, metadata.MD(reply.Trailer))
	switch {
	case reply.Err != nil:
		return nil, rpc.Bare(reply.Err)
	case reply.Status != nil:
		return nil, status.ErrorProto(reply.Status)
	}
	return reply.Message, nil
}

// Stream is a grpc.StreamServerInterceptor. It refuses streaming calls of
// protected methods that have a key, and all of them if a key is required.
func (i *Interceptor) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if i.config.Protects(info.FullMethod) {
		if refused := i.server.Stream(metadata.ValueFromIncomingContext(stream.Context(), MetadataKey)); refused != nil {
			return status.ErrorProto(refused)
		}
	}
	return handler(srv, stream)
}

func asProto(v any) proto.Message {
	switch m := v.(type) {
	case proto.Message:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}

func defaultOrigin(ctx context.Context) semel.Origin {
	return semelhttp.DefaultOrigin(&http.Request{Header: http.Header{
		"X-Request-Id": metadata.ValueFromIncomingContext(ctx, "x-request-id"),
		"Traceparent":  metadata.ValueFromIncomingContext(ctx, "traceparent"),
	}})
}

// collector is the transport stream that an execution sees: what it sets is
// recorded before it is sent.
type collector struct {
	method string

	mu              sync.Mutex
	sent            bool
	header, trailer metadata.MD
}

func (c *collector) Method() string { return c.method }

func (c *collector) SetHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errors.New("semelgrpc: SetHeader after SendHeader")
	}
	c.header = metadata.Join(c.header, lower(md))
	return nil
}

func (c *collector) SendHeader(md metadata.MD) error {
	if err := c.SetHeader(md); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = true
	return nil
}

func (c *collector) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, lower(md))
	return nil
}

// lower copies md with names as they go over the wire.
func lower(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for name, values := range md {
		name = strings.ToLower(name)
		out[name] = append(out[name], values...)
	}
	return out
}

// reply is what the handler returned, the way grpc would send it.
func (c *collector) reply(resp any, err error) rpc.Reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := rpc.Reply{Header: c.header.Copy(), Trailer: c.trailer.Copy(), Err: err}
	if err == nil {
		r.Message = asProto(resp)
		return r
	}
	r.Status = statusOf(rpc.Bare(err))
	return r
}

func statusOf(err error) *spb.Status {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s.Proto()
}
