package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
)

// logger logs what operators must know. It is never given keys, credentials or
// payload.
type logger struct{ *slog.Logger }

// operationName is a scope's operation as logs have it: without the path that
// stands in for a name, because clients put secrets into paths. The record has it.
func operationName(s semel.Scope) string {
	name, _, _ := strings.Cut(s.Operation, "/")
	return strings.TrimSpace(name)
}

func newLog(w io.Writer, format string) *logger {
	if format == "json" {
		return &logger{slog.New(slog.NewJSONHandler(w, nil))}
	}
	return &logger{slog.New(slog.NewTextHandler(w, nil))}
}

// unquoted is an error without what it quotes: package http quotes what a server
// has sent, where that is no HTTP.
func unquoted(err error) string {
	text, _, cut := strings.Cut(err.Error(), `"`)
	if cut {
		text += "..."
	}
	return text
}

func (l *logger) guard() *semel.Observer {
	return &semel.Observer{
		StoreFailed: func(ctx context.Context, f semel.StoreFailed) {
			l.WarnContext(ctx, "store failed", "call", f.Call, "operation", operationName(f.Scope), "record", f.RecordID, "err", f.Err)
		},
		LeaseLost: func(ctx context.Context, f semel.LeaseLost) {
			l.WarnContext(ctx, "lease lost: the record's new owner settles the outcome", "operation", operationName(f.Scope), "record", f.RecordID, "fence", f.Fence, "cause", f.Cause)
		},
		Panicked: func(ctx context.Context, f semel.Panicked) {
			if f.Err.Value == http.ErrAbortHandler {
				return // how a response is cut off on purpose; the cause is logged
			}
			l.ErrorContext(ctx, "panic: the outcome is unknown", "operation", operationName(f.Scope), "record", f.RecordID, "err", f.Err, "stack", string(f.Err.Stack))
		},
		FailedOpen: func(ctx context.Context, s semel.Scope, cause error) {
			l.WarnContext(ctx, "failed open: a request passed unprotected", "operation", operationName(s), "cause", cause)
		},
	}
}

// rehearsed tells what a dry run would have done to a request, where that is
// another thing than to execute it.
func (l *logger) rehearsed(ctx context.Context, a semel.Answered) {
	would := a.Answer.String()
	switch {
	case a.Label == semelhttp.LabelDryRunUnknown:
		would = semel.AnswerUnknown.String()
	case a.Answer == semel.AnswerExecuted || a.Answer == semel.AnswerReleased:
		return
	}
	l.InfoContext(ctx, "dry run: forwarded all the same", "would_be", would, "operation", operationName(a.Scope), "record", a.RecordID, "key_digest", a.KeyDigest)
}

func (l *logger) rehearsedRefusal(ctx context.Context, p semelhttp.Problem) {
	problem, _ := p.Case()
	l.InfoContext(ctx, "dry run: a request", "would_be", "refused", "status", p.Status, "problem", string(problem))
}

func (l *logger) gateway() *gateway.Observer {
	return &gateway.Observer{
		Failed: func(ctx context.Context, f gateway.Failed) {
			what := "upstream not reached: nothing was sent"
			switch {
			case f.GaveUp:
				what = "gave up waiting for the upstream"
			case f.Answered:
				what = "upstream cut off its response"
			case f.Sent:
				what = "upstream cut off before its response"
			}
			l.WarnContext(ctx, what, "record", f.RecordID, "err", unquoted(f.Err))
		},
		Reconciled: func(ctx context.Context, r gateway.Reconciled) {
			if r.Err != nil {
				l.WarnContext(ctx, "the upstream did not say what became of an operation: it stays unknown", "record", r.RecordID, "status", r.Status, "err", unquoted(r.Err))
				return
			}
			l.InfoContext(ctx, "the upstream was asked what became of an operation", "record", r.RecordID, "status", r.Status, "effect", r.Found)
		},
		SpoolFailed: func(ctx context.Context, err error) {
			l.WarnContext(ctx, "a large body could not be spooled: a request is refused with 503, a response passes but cannot be replayed", "err", err)
		},
	}
}

// principal is told when it could not be learned who callers are.
func (l *logger) principal(ctx context.Context, err error) {
	l.WarnContext(ctx, "callers cannot be identified: requests with a key are answered with 503", "err", err)
}

// delivery is told of deliveries of webhooks that are not accepted.
func (l *logger) delivery(r *http.Request, err error) {
	l.WarnContext(r.Context(), "a delivery of a webhook was not accepted: nothing was processed", "err", err)
}
