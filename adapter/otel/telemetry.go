package semelotel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	nometrics "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	notraces "go.opentelemetry.io/otel/trace/noop"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// scopeName is the instrumentation scope of all that this package makes.
const scopeName = "github.com/semelhq/semel/adapter/otel"

// Config configures a Telemetry.
type Config struct {
	// MeterProvider takes the metrics, TracerProvider the spans; nil for none.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Operation names a scope's operation for metrics and spans, as
	// semel.operation. It must return one of a few names, or "" for none.
	// Default: none, for operations hold paths unless they are named otherwise.
	Operation func(semel.Scope) string
	// DryRun marks decisions as without effect: they have the attribute
	// semel.dry_run.
	DryRun bool

	// Completed is called for each request that went through Handler, when it
	// is done: for access logs. It must not block. May be nil.
	Completed func(context.Context, Exchange)
}

// Telemetry makes observers. Make one for a process. Safe for concurrent use.
type Telemetry struct {
	config Config
	traced bool // somebody wants spans
	tracer trace.Tracer
	meter  metric.Meter

	serverDuration, clientDuration, attemptDuration metric.Float64Histogram

	decisions, refusals, unprotected, storeFailures, leaseLosses, panics metric.Int64Counter
	upstreamFailures, spoolFailures, sweptRecords, sweepFailures         metric.Int64Counter
	reconciliations                                                      metric.Int64Counter
	outboxAttempts, outboxStoreFailures                                  metric.Int64Counter
	active                                                               metric.Int64UpDownCounter
	records, outboxMessages                                              metric.Int64Gauge
	outboxOldest                                                         metric.Float64Gauge

	executions, maxExecutions, waiters, maxWaiters, spool, maxSpool metric.Int64ObservableGauge

	// The options that measurements have been given, by what they are made of.
	// There are no more than the metrics have series. It is replaced whole.
	options atomic.Pointer[map[series]metric.MeasurementOption]

	mu     sync.Mutex
	topics map[string]bool // that have a name of their own
}

// durations are the buckets that the conventions give for HTTP.
var durations = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

// New returns a Telemetry, or an error if one of the providers cannot create an instrument.
func New(c Config) (*Telemetry, error) {
	if c.MeterProvider == nil {
		c.MeterProvider = nometrics.NewMeterProvider()
	}
	traced := c.TracerProvider != nil
	if !traced {
		c.TracerProvider = notraces.NewTracerProvider()
	}
	if c.Operation == nil {
		c.Operation = func(semel.Scope) string { return "" }
	}
	t := &Telemetry{
		config: c, traced: traced, tracer: c.TracerProvider.Tracer(scopeName), meter: c.MeterProvider.Meter(scopeName),
		topics: map[string]bool{},
	}
	t.options.Store(&map[series]metric.MeasurementOption{})
	var errs []error
	for _, i := range []struct {
		into             any
		name, unit, text string
	}{
		{&t.serverDuration, "http.server.request.duration", "s", "Time until a request was answered."},
		{&t.active, "http.server.active_requests", "{request}", "Requests that are being answered."},
		{&t.clientDuration, "http.client.request.duration", "s", "Time until the upstream began to answer."},
		{&t.decisions, "semel.decisions", "{decision}", "Protected requests and other submits, by what they were answered."},
		{&t.refusals, "semel.refusals", "{request}", "Requests that were refused before any look in the store."},
		{&t.unprotected, "semel.unprotected", "{request}", "Requests let through without protection because the store was unavailable."},
		{&t.storeFailures, "semel.store.failures", "{call}", "Calls of the store that failed; they may have been tried again."},
		{&t.leaseLosses, "semel.lease.losses", "{execution}", "Executions that were cancelled because their claim was lost."},
		{&t.panics, "semel.handler.panics", "{execution}", "Handlers that panicked, or whose answer was cut off."},
		{&t.executions, "semel.executions", "{execution}", "Submits that claim or execute now."},
		{&t.maxExecutions, "semel.executions.limit", "{execution}", "Most submits that may claim or execute at the same time."},
		{&t.waiters, "semel.waiters", "{request}", "Submits that wait for the execution of another."},
		{&t.maxWaiters, "semel.waiters.limit", "{request}", "Most submits that may wait at the same time."},
		{&t.spool, "semel.spool.usage", "By", "What temporary files of large bodies hold now."},
		{&t.maxSpool, "semel.spool.limit", "By", "Most that temporary files of large bodies may hold."},
		{&t.spoolFailures, "semel.spool.failures", "{body}", "Large bodies that could not be held."},
		{&t.records, "semel.records", "{record}", "Records whose outcome nobody knows, counted up to 10,000."},
		{&t.sweptRecords, "semel.sweep.records", "{record}", "Expired records that were removed."},
		{&t.sweepFailures, "semel.sweep.failures", "{sweep}", "Sweeps that ended early; the next one goes on."},
		{&t.upstreamFailures, "semel.upstream.failures", "{request}", "Requests that got no whole answer from the upstream."},
		{&t.reconciliations, "semel.reconciliations", "{request}", "Look-ups of what became of an operation, by what the upstream said of the effect."},
		{&t.outboxOldest, "semel.outbox.oldest.age", "s", "For how long the oldest pending message could have been delivered."},
		{&t.outboxMessages, "semel.outbox.messages", "{message}", "Messages that are not delivered, up to the store's limit of counting."},
		{&t.outboxAttempts, "semel.outbox.attempts", "{attempt}", "Attempts at messages, by what they came to."},
		{&t.attemptDuration, "semel.outbox.attempt.duration", "s", "Time that the sink took for an attempt."},
		{&t.outboxStoreFailures, "semel.outbox.store.failures", "{call}", "Calls of the outbox's store that failed; they are tried again."},
	} {
		var err error
		unit, text := metric.WithUnit(i.unit), metric.WithDescription(i.text)
		switch into := i.into.(type) {
		case *metric.Float64Histogram:
			*into, err = t.meter.Float64Histogram(i.name, unit, text, durations)
		case *metric.Int64Counter:
			*into, err = t.meter.Int64Counter(i.name, unit, text)
		case *metric.Int64UpDownCounter:
			*into, err = t.meter.Int64UpDownCounter(i.name, unit, text)
		case *metric.Int64Gauge:
			*into, err = t.meter.Int64Gauge(i.name, unit, text)
		case *metric.Float64Gauge:
			*into, err = t.meter.Float64Gauge(i.name, unit, text)
		case *metric.Int64ObservableGauge:
			*into, err = t.meter.Int64ObservableGauge(i.name, unit, text)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("semelotel: %w", err)
	}
	return t, nil
}

// series are the attributes of a measurement.
type series struct {
	method, scheme, route, host string
	status, port                int
	outcome, problem, operation string
	call, state, topic, errType string
	dryRun                      bool
}

// of returns the option for a measurement with these attributes.
func (t *Telemetry) of(s series) metric.MeasurementOption {
	if made, ok := (*t.options.Load())[s]; ok {
		return made
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(*t.options.Load())
	all[s] = metric.WithAttributeSet(attribute.NewSet(s.attributes()...))
	t.options.Store(&all)
	return all[s]
}

func (s series) attributes() []attribute.KeyValue {
	var all []attribute.KeyValue
	for _, a := range []struct{ name, value string }{
		{"http.request.method", s.method},
		{"url.scheme", s.scheme},
		{"http.route", s.route},
		{"server.address", s.host},
		{"semel.outcome", s.outcome},
		{"semel.problem", s.problem},
		{"semel.operation", s.operation},
		{"semel.store.call", s.call},
		{"semel.state", s.state},
		{"semel.topic", s.topic},
		{"error.type", s.errType},
	} {
		if a.value != "" {
			all = append(all, attribute.String(a.name, a.value))
		}
	}
	if s.status != 0 {
		all = append(all, attribute.Int("http.response.status_code", s.status))
	}
	if s.port != 0 {
		all = append(all, attribute.Int("server.port", s.port))
	}
	if s.dryRun {
		all = append(all, attribute.Bool("semel.dry_run", true))
	}
	return all
}

// WatchGuard measures the load of g and of all guards that share its limits.
// Watch only one of them.
func (t *Telemetry) WatchGuard(g *semel.Guard) error {
	_, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		l := g.Load()
		o.ObserveInt64(t.executions, int64(l.Executions))
		o.ObserveInt64(t.maxExecutions, int64(l.MaxExecutions))
		o.ObserveInt64(t.waiters, int64(l.Waiters))
		o.ObserveInt64(t.maxWaiters, int64(l.MaxWaiters))
		return nil
	}, t.executions, t.maxExecutions, t.waiters, t.maxWaiters)
	return err
}

// WatchSpools measures what s holds. Watch only one.
func (t *Telemetry) WatchSpools(s *semelhttp.Spools) error {
	_, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(t.spool, s.Used())
		o.ObserveInt64(t.maxSpool, s.Max())
		return nil
	}, t.spool, t.maxSpool)
	return err
}

// maxCounted is how many records of a state are counted.
const maxCounted = 10_000

// CountRecords counts records without a known outcome: unknown ones, and lapsed
// ones, which the next request with their key will make unknown. The stores of
// this module find them by an index. It counts up to 10,000 of each. Call it every
// few seconds. If it fails, the figures stay as they were.
func (t *Telemetry) CountRecords(ctx context.Context, store semel.Lister) error {
	for _, of := range []struct {
		state  string
		filter semel.Filter
	}{
		{"unknown", semel.Filter{State: semel.StateUnknown}},
		{"lapsed", semel.Filter{State: semel.StateInProgress, Lapsed: true}},
	} {
		f, n := of.filter, 0
		for f.Limit = 1000; n < maxCounted; {
			page, err := store.List(ctx, f)
			if err != nil {
				return fmt.Errorf("semelotel: records cannot be counted: %w", err)
			}
			n += len(page)
			if len(page) < f.Limit {
				break
			}
			f.After = page[len(page)-1].Fence
		}
		t.records.Record(ctx, int64(n), t.of(series{state: of.state}))
	}
	return nil
}

// Swept counts a sweep of a store: how many records it removed, and why it ended
// early, if it did.
func (t *Telemetry) Swept(ctx context.Context, records int, err error) {
	t.sweptRecords.Add(ctx, int64(records))
	if err != nil {
		t.sweepFailures.Add(ctx, 1)
	}
}

func since(start time.Time) float64 { return time.Since(start).Seconds() }
