package semelclient_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
)

// TestTransportNeverSent: without a connection nothing was sent, so that is
// tried again whatever the request is, and the error is certain.
func TestTransportNeverSent(t *testing.T) {
	var o orders
	s := serve(t, &o, false)
	refused := errors.New("refused")
	tests := []struct {
		name   string
		method string
		keyed  bool
		body   func(r *http.Request)
		fails  int
		want   string
	}{
		{"POST without key", "POST", false, nil, 2, "answer"},
		{"POST with key", "POST", true, nil, 2, "answer"},
		{"never", "POST", false, nil, 9, "none"},
		{"never with key", "POST", true, nil, 9, "none"},
		{"body read on the way", "POST", false, func(r *http.Request) {
			r.Body = io.NopCloser(io.LimitReader(r.Body, 100)) // as any that is not in memory
		}, 2, "answer"},
		{"body that is no more", "POST", false, func(r *http.Request) { r.GetBody = nil }, 1, "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := o.count()
			var dials int
			base := closing(t, &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials++; dials <= tt.fails {
					return nil, refused
				}
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}})
			tr := transport(t, base, func(c *semelclient.Config) { c.NeedsKey = func(*http.Request) bool { return tt.keyed } })
			r := request(t, t.Context(), tt.method, "{}")
			r.URL.Host = strings.TrimPrefix(s.URL, "http://")
			if tt.body != nil {
				tt.body(r)
			}
			resp, err := tr.RoundTrip(r)
			if tt.want == "answer" {
				if err != nil || resp.StatusCode != 201 || o.count() != before+1 || dials != 3 {
					t.Fatalf("%d effects, %d dials, error %v", o.count()-before, dials, err)
				}
				_ = resp.Body.Close()
				return
			}
			if !errors.Is(err, semel.ErrNoEffect) || errors.Is(err, semel.ErrMaybeEffect) || !errors.Is(err, refused) || o.count() != before {
				t.Errorf("%d effects, error %v", o.count()-before, err)
			}
		})
	}
	t.Run("TLS handshake", func(t *testing.T) {
		secure := httptest.NewUnstartedServer(&o)
		secure.Config.ErrorLog = log.New(io.Discard, "", 0)
		secure.StartTLS()
		defer secure.Close()
		r := request(t, t.Context(), "POST", "{}")
		r.URL.Scheme, r.URL.Host = "https", strings.TrimPrefix(secure.URL, "https://")
		before := o.count()
		_, err := transport(t, closing(t, &http.Transport{})).RoundTrip(r) // does not trust the server
		if e := failure(t, err); !errors.Is(err, semel.ErrNoEffect) || e.Reason != semelclient.ReasonRefused || e.Tries != 1 || o.count() != before {
			t.Errorf("%d effects, error %+v", o.count()-before, e)
		}
	})
}

// TestTransportSentBefore: of a request that was sent and cut off, a later try
// that finds no connection says nothing.
func TestTransportSentBefore(t *testing.T) {
	s := newRawServer(t, func(net.Conn) bool { return false })
	var dials int
	base := closing(t, &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials++; dials > 1 {
			return nil, errors.New("refused")
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
	r := request(t, t.Context(), "POST", "{}")
	r.URL.Host = strings.TrimPrefix(s.url, "http://")
	_, err := transport(t, base).RoundTrip(r)
	if e := failure(t, err); !errors.Is(err, semel.ErrMaybeEffect) || errors.Is(err, semel.ErrNoEffect) || e.Tries != semelclient.DefaultMaxTries || s.asked.Load() != 1 {
		t.Errorf("%d requests, error %v", s.asked.Load(), err)
	}
	// A dial that fails says nothing of what a base has done before it.
	base2 := &script{answers: []play{func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	}}}
	if _, err := transport(t, base2).RoundTrip(request(t, t.Context(), "POST", "{}")); !errors.Is(err, semel.ErrMaybeEffect) {
		t.Errorf("an untraced base: %v", err)
	}
}

// TestTransportNoEffectOfAKeyUsedBefore: of a key that may have been used by
// somebody else, a call that sent nothing says nothing. In an execution, those
// before it count.
func TestTransportNoEffectOfAKeyUsedBefore(t *testing.T) {
	refused := errors.New("refused")
	tr := transport(t, closing(t, &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}))
	never := func(t *testing.T, r *http.Request, want error) {
		t.Helper()
		_, err := tr.RoundTrip(r)
		e := failure(t, err)
		if !errors.Is(err, refused) || !errors.Is(err, want) || errors.Is(err, semel.ErrNoEffect) == errors.Is(err, semel.ErrMaybeEffect) {
			t.Errorf("effect %v, %v; want %v", e.Effect(), err, want)
		}
		if want == semel.ErrMaybeEffect && !strings.Contains(err.Error(), "one before it under its key may have had") {
			t.Errorf("the error does not say whose effect it may be: %v", err)
		}
	}
	for name, r := range map[string]*http.Request{
		"made for the call":       request(t, t.Context(), "POST", "{}"),
		"made for the operation":  request(t, semelclient.NewOperation(t.Context()), "POST", "{}"),
		"none":                    request(t, t.Context(), "PUT", "{}"),
		"none, but the operation": request(t, semelclient.WithKey(t.Context(), "k"), "GET", ""),
	} {
		t.Run(name, func(t *testing.T) { never(t, r, semel.ErrNoEffect) })
	}
	for name, r := range map[string]*http.Request{
		"kept":                     request(t, semelclient.WithKey(t.Context(), "k"), "POST", "{}"),
		"of an earlier operation":  request(t, semelclient.WithOperation(t.Context(), semelclient.Operation{Key: "k", FirstSent: time.Now()}), "POST", "{}"),
		"in the header":            request(t, t.Context(), "POST", "{}", "Idempotency-Key: k"),
		"in the header of another": request(t, semelclient.NewOperation(t.Context()), "POST", "{}", "Idempotency-Key: k"),
		"malformed, but a key":     request(t, t.Context(), "POST", "{}", "Idempotency-Key: "+strings.Repeat("k", 300)),
		"of an idempotent method":  request(t, t.Context(), "PUT", "{}", "Idempotency-Key: k"),
	} {
		t.Run(name, func(t *testing.T) { never(t, r, semel.ErrMaybeEffect) })
	}
	t.Run("the operation's own, in its header", func(t *testing.T) {
		ctx := semelclient.NewOperation(t.Context())
		op, _ := semelclient.CurrentOperation(ctx)
		never(t, request(t, ctx, "POST", "{}", `Idempotency-Key: "`+op.Key+`"`), semel.ErrNoEffect)
	})
	t.Run("of a step", func(t *testing.T) {
		g := newGuard(t, semel.Policy{OnCrash: semel.CrashRetry})
		submit := semel.Submit{
			Identity:    semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"},
			Fingerprint: semel.FingerprintOf([]byte("x")),
		}
		for _, want := range []error{semel.ErrNoEffect, semel.ErrMaybeEffect} {
			_, err := g.Do(t.Context(), submit, func(ctx context.Context) (semel.Result, error) {
				ctx, err := semelclient.WithStep(ctx, "charge")
				if err != nil {
					return semel.Result{}, err
				}
				never(t, request(t, ctx, "POST", "{}"), want)
				return semel.Result{}, errors.New("cannot tell")
			})
			if !errors.Is(err, semel.ErrUnknown) {
				t.Fatal(err)
			}
		}
	})
}
