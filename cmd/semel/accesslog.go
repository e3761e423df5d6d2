package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	semelotel "github.com/semelhq/semel/adapter/otel"
)

// accessLog writes one line for each request. Whoever reads it slowly holds up no
// request: lines that do not fit into the queue are dropped and counted.
type accessLog struct {
	log     *logger
	lines   *slog.Logger
	queue   chan []byte
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

// maxQueued is how many lines wait to be written.
const maxQueued = 8192

func newAccessLog(w io.Writer, log *logger, dryRun bool) *accessLog {
	l := &accessLog{log: log, queue: make(chan []byte, maxQueued), stop: make(chan struct{}), done: make(chan struct{})}
	l.lines = slog.New(slog.NewJSONHandler(l, nil))
	if dryRun {
		l.lines = l.lines.With("semel.dry_run", true)
	}
	go l.run(w)
	return l
}

// Write queues a line.
func (l *accessLog) Write(p []byte) (int, error) {
	select {
	case l.queue <- bytes.Clone(p):
	default:
		l.dropped.Add(1)
	}
	return len(p), nil
}

func (l *accessLog) run(w io.Writer) {
	defer close(l.done)
	failed := false
	write := func(line []byte) {
		_, err := w.Write(line)
		if err != nil && !failed {
			l.log.Warn("the access log cannot be written; requests are served all the same", "err", err)
		}
		failed = err != nil
		if n := l.dropped.Swap(0); n > 0 {
			l.log.Warn("lines of the access log are lost, because it is read too slowly", "lines", n)
		}
	}
	for {
		select {
		case line := <-l.queue:
			write(line)
		case <-l.stop:
			for len(l.queue) > 0 {
				write(<-l.queue)
			}
			return
		}
	}
}

// close writes what is queued, for at most d.
func (l *accessLog) close(d time.Duration) {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(d):
		l.log.Warn("lines of the access log are lost, because nobody reads it", "lines", len(l.queue))
	}
}

// request writes the line of a request, with the names of OpenTelemetry where it
// has them.
func (l *accessLog) request(ctx context.Context, x semelotel.Exchange) {
	attrs := make([]slog.Attr, 0, 24)
	text := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	text("http.request.method", x.Method)
	text("http.route", x.Route)
	text("url.scheme", x.Scheme)
	attrs = append(attrs, slog.Int("http.response.status_code", x.Status), slog.Float64("duration", x.Duration.Seconds()))
	if x.RequestBytes >= 0 {
		attrs = append(attrs, slog.Int64("http.request.body.size", x.RequestBytes))
	}
	attrs = append(attrs, slog.Int64("http.response.body.size", x.ResponseBytes))
	text("client.address", x.Client)
	text("semel.outcome", x.Outcome)
	text("semel.problem", x.Problem)
	text("semel.operation", x.Operation)
	text("semel.record_id", x.RecordID)
	text("semel.key.digest", x.KeyDigest)
	text("semel.actor.digest", x.ActorDigest)
	text("semel.tenant.digest", x.TenantDigest)
	if x.FailedOpen {
		attrs = append(attrs, slog.Bool("semel.failed_open", true))
	}
	if x.Aborted {
		text("error.type", "aborted")
	}
	text("trace_id", x.TraceID)
	l.lines.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}
