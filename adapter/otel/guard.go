package semelotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// Guard returns an observer for a guard. It also calls next, if that is not nil.
// Counters are created at zero, because a rate would miss the first event of a
// counter that appears with a one.
func (t *Telemetry) Guard(next *semel.Observer) *semel.Observer {
	if next == nil {
		next = &semel.Observer{}
	}
	ctx := context.Background()
	for answer := semel.AnswerExecuted; answer <= semel.AnswerUnavailable; answer++ {
		t.decisions.Add(ctx, 0, t.of(series{outcome: answer.String(), dryRun: t.config.DryRun}).add...)
	}
	for _, call := range []string{"begin", "renew", "complete", "release", "hold", "resolve"} {
		t.storeFailures.Add(ctx, 0, t.of(series{call: call}).add...)
	}
	for _, c := range []metric.Int64Counter{t.unprotected, t.leaseLosses, t.panics, t.sweptRecords, t.sweepFailures} {
		c.Add(ctx, 0, t.of(series{}).add...)
	}
	return &semel.Observer{
		Answered: func(ctx context.Context, a semel.Answered) {
			t.answered(ctx, a)
			if next.Answered != nil {
				next.Answered(ctx, a)
			}
		},
		StoreFailed: func(ctx context.Context, f semel.StoreFailed) {
			t.storeFailures.Add(ctx, 1, t.of(series{call: f.Call}).add...)
			if next.StoreFailed != nil {
				next.StoreFailed(ctx, f)
			}
		},
		LeaseLost: func(ctx context.Context, l semel.LeaseLost) {
			t.leaseLosses.Add(ctx, 1, t.of(series{operation: t.config.Operation(l.Scope)}).add...)
			if next.LeaseLost != nil {
				next.LeaseLost(ctx, l)
			}
		},
		Panicked: func(ctx context.Context, p semel.Panicked) {
			t.panics.Add(ctx, 1, t.of(series{operation: t.config.Operation(p.Scope)}).add...)
			if next.Panicked != nil {
				next.Panicked(ctx, p)
			}
		},
		FailedOpen: func(ctx context.Context, s semel.Scope, cause error) {
			t.unprotected.Add(ctx, 1, t.of(series{operation: t.config.Operation(s)}).add...)
			if x := exchangeOf(ctx); x != nil {
				x.mu.Lock()
				x.FailedOpen = true
				x.mu.Unlock()
			}
			if next.FailedOpen != nil {
				next.FailedOpen(ctx, s, cause)
			}
		},
	}
}

func (t *Telemetry) answered(ctx context.Context, a semel.Answered) {
	outcome, operation := a.Answer.String(), t.config.Operation(a.Scope)
	if a.Label == semelhttp.LabelDryRunUnknown {
		outcome = semel.AnswerUnknown.String()
	}
	made := t.answers[a.Answer]
	if operation != "" || a.Label == semelhttp.LabelDryRunUnknown {
		made = t.of(series{outcome: outcome, operation: operation, dryRun: t.config.DryRun})
	}
	t.decisions.Add(ctx, 1, made.add...)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("semel.outcome", outcome))
		if a.RecordID != "" {
			span.SetAttributes(attribute.String("semel.record_id", a.RecordID))
		}
		if operation != "" {
			span.SetAttributes(attribute.String("semel.operation", operation))
		}
	}
	x := exchangeOf(ctx)
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.Outcome, x.RecordID, x.KeyDigest, x.Operation = outcome, a.RecordID, a.KeyDigest, operation
	if t.config.Completed != nil {
		x.ActorDigest, x.TenantDigest = semel.Digest(a.Scope.Actor), semel.Digest(a.Scope.Tenant)
	}
}

// Refused is for semelhttp.Config.Refused: it counts requests that are refused
// before any look in the store, as decisions too.
func (t *Telemetry) Refused(ctx context.Context, p semelhttp.Problem) {
	outcome, problem := semel.AnswerRejected.String(), "_OTHER"
	if p.Status >= 500 {
		outcome = semel.AnswerUnavailable.String()
	}
	if known, ok := p.Case(); ok {
		problem = string(known)
	}
	t.refusals.Add(ctx, 1, t.of(series{problem: problem}).add...)
	t.decisions.Add(ctx, 1, t.of(series{outcome: outcome, dryRun: t.config.DryRun}).add...)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("semel.outcome", outcome), attribute.String("semel.problem", problem))
	}
	if x := exchangeOf(ctx); x != nil {
		x.mu.Lock()
		x.Outcome, x.Problem = outcome, problem
		x.mu.Unlock()
	}
}
