package semelotel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
)

// Gateway returns an observer for a gateway. It also calls next, if that is
// not nil.
func (t *Telemetry) Gateway(next *gateway.Observer) *gateway.Observer {
	if next == nil {
		next = &gateway.Observer{}
	}
	for _, what := range []string{"unreached", "cut_off", "answer_cut_off", "gave_up"} {
		t.upstreamFailures.Add(context.Background(), 0, t.of(series{errType: what}))
	}
	for _, found := range []string{"present", "absent", "undecided"} {
		t.reconciliations.Add(context.Background(), 0, t.of(series{outcome: found}))
	}
	t.spoolFailures.Add(context.Background(), 0)
	return &gateway.Observer{
		Failed: func(ctx context.Context, f gateway.Failed) {
			what := "unreached"
			switch {
			case f.GaveUp:
				what = "gave_up"
			case f.Answered:
				what = "answer_cut_off"
			case f.Sent:
				what = "cut_off"
			}
			t.upstreamFailures.Add(ctx, 1, t.of(series{errType: what}))
			if next.Failed != nil {
				next.Failed(ctx, f)
			}
		},
		Forwarding: func(ctx context.Context, f gateway.Forwarding) func(int, error) {
			own := t.forwarding(ctx, f)
			if next.Forwarding == nil {
				return own
			}
			others := next.Forwarding(ctx, f)
			return func(status int, err error) {
				own(status, err)
				if others != nil {
					others(status, err)
				}
			}
		},
		Reconciled: func(ctx context.Context, r gateway.Reconciled) {
			t.reconciliations.Add(ctx, 1, t.of(series{outcome: r.Found}))
			if next.Reconciled != nil {
				next.Reconciled(ctx, r)
			}
		},
		Refused: func(ctx context.Context, p semelhttp.Problem) {
			t.Refused(ctx, p)
			if next.Refused != nil {
				next.Refused(ctx, p)
			}
		},
		SpoolFailed: func(ctx context.Context, err error) {
			t.spoolFailures.Add(ctx, 1)
			if next.SpoolFailed != nil {
				next.SpoolFailed(ctx, err)
			}
		},
	}
}

// forwarding measures a request to the upstream, and puts its span into the
// header.
func (t *Telemetry) forwarding(ctx context.Context, f gateway.Forwarding) func(int, error) {
	s := series{method: knownMethod(f.Method), scheme: f.Upstream.Scheme, host: f.Upstream.Hostname()}
	if s.port, _ = strconv.Atoi(f.Upstream.Port()); s.port == 0 {
		s.port = 80
		if s.scheme == "https" {
			s.port = 443
		}
	}
	start := time.Now()
	before := trace.SpanContextFromContext(ctx)
	var span trace.Span = noop.Span{}
	if t.traced {
		ctx, span = t.tracer.Start(ctx, s.method, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(start))
	}
	if own := span.SpanContext(); own.IsValid() && own.SpanID() != before.SpanID() {
		inject(ctx, f.Header)
	}
	return func(status int, err error) {
		s.status = status
		switch {
		case err != nil:
			s.errType = errorType(err)
		case status >= 400:
			s.errType = strconv.Itoa(status)
		}
		t.clientDuration.Record(ctx, since(start), t.of(s))
		if span.IsRecording() {
			span.SetAttributes(s.attributes()...)
			if f.RecordID != "" {
				span.SetAttributes(attribute.String("semel.record_id", f.RecordID))
			}
			if s.errType != "" {
				span.SetStatus(codes.Error, "")
			}
		}
		span.End()
	}
}

// errorType is one of a few words for why there was no answer.
func errorType(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "timeout"
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrAbortHandler) {
		return "canceled"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return "connect"
	}
	return "_OTHER"
}
