package semelotel

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/semelhq/semel/outbox"
)

// maxTopics is how many topics have series of their own.
const maxTopics = 100

// topic is the name of a topic in metrics.
func (t *Telemetry) topic(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.topics[name] {
		if len(t.topics) == maxTopics {
			return "_OTHER"
		}
		t.topics[name] = true
	}
	return name
}

// Outbox returns an observer for one relay. It also calls next, if that is not
// nil.
func (t *Telemetry) Outbox(next *outbox.Observer) *outbox.Observer {
	if next == nil {
		next = &outbox.Observer{}
	}
	attempted := func(outcome string, next func(context.Context, outbox.Attempted)) func(context.Context, outbox.Attempted) {
		return func(ctx context.Context, a outbox.Attempted) {
			t.attempted(ctx, outcome, a)
			if next != nil {
				next(ctx, a)
			}
		}
	}
	waiting := &waiting{Telemetry: t}
	return &outbox.Observer{
		Status: func(ctx context.Context, all []outbox.TopicStatus) {
			waiting.status(ctx, all)
			if next.Status != nil {
				next.Status(ctx, all)
			}
		},
		Delivered: attempted("delivered", next.Delivered),
		Retried:   attempted("retried", next.Retried),
		Dead:      attempted("dead", next.Dead),
		Unknown:   attempted("unknown", next.Unknown),
		LeaseLost: attempted("lease_lost", next.LeaseLost),
		Claimed:   next.Claimed,
		Swept:     next.Swept,
		StoreFailed: func(ctx context.Context, call string, err error) {
			t.outboxStoreFailures.Add(ctx, 1, t.of(series{call: call}).add...)
			if next.StoreFailed != nil {
				next.StoreFailed(ctx, call, err)
			}
		},
	}
}

func (t *Telemetry) attempted(ctx context.Context, outcome string, a outbox.Attempted) {
	topic := t.topic(a.Topic)
	t.outboxAttempts.Add(ctx, 1, t.of(series{topic: topic, outcome: outcome}).add...)
	t.attemptDuration.Record(ctx, a.Took.Seconds(), t.of(series{topic: topic}).record...)
	end := time.Now()
	_, span := t.tracer.Start(ctx, "send "+topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(end.Add(-a.Took)),
		trace.WithAttributes(
			attribute.String("messaging.operation.type", "send"), attribute.String("messaging.destination.name", topic),
			attribute.Int("semel.attempt", a.Attempt), attribute.String("semel.outcome", outcome)))
	if outcome != "delivered" {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(end))
}

// waiting is what a relay was last told of what waits.
type waiting struct {
	*Telemetry
	mu   sync.Mutex
	told map[string]bool // the topics by their names in metrics
}

// status records what waits. Topics that have no series of their own are taken
// together, with the age of the oldest of all. Of a topic that is not there any
// more nothing waits.
func (t *waiting) status(ctx context.Context, all []outbox.TopicStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	together := map[string]outbox.TopicStatus{}
	for name := range t.told {
		together[name] = outbox.TopicStatus{}
	}
	t.told = map[string]bool{}
	for _, s := range all {
		name := t.topic(s.Topic)
		sum := together[name]
		sum.OldestAge = max(sum.OldestAge, s.OldestAge)
		sum.Pending, sum.Dead, sum.Unknown, sum.Blocked = sum.Pending+s.Pending, sum.Dead+s.Dead, sum.Unknown+s.Unknown, sum.Blocked+s.Blocked
		together[name], t.told[name] = sum, true
	}
	for name, s := range together {
		t.outboxOldest.Record(ctx, s.OldestAge.Seconds(), t.of(series{topic: name}).record...)
		for state, n := range map[string]int{"pending": s.Pending, "dead": s.Dead, "unknown": s.Unknown, "blocked": s.Blocked} {
			t.outboxMessages.Record(ctx, int64(n), t.of(series{topic: name, state: state}).record...)
		}
	}
}
