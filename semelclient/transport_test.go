package semelclient_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
)

// TestTransportBounds: when a call gives up, how long it took, and why.
func TestTransportBounds(t *testing.T) {
	patient := func(c *semelclient.Config) {
		c.MinBackoff, c.MaxBackoff = time.Second, time.Second
		c.MaxTries, c.MaxElapsed = 1000, 20*time.Second
	}
	tests := []struct {
		name    string
		answers []play
		config  func(*semelclient.Config)
		timeout time.Duration // of the context
		reason  semelclient.Reason
		tries   int // 0: several
		atMost  time.Duration
	}{
		{"tries", []play{cut}, func(c *semelclient.Config) { patient(c); c.MaxTries = 3 }, 0, semelclient.ReasonTries, 3, 2 * time.Second},
		{"one try", []play{reply(503, "")}, func(c *semelclient.Config) { c.MaxTries = 1 }, 0, semelclient.ReasonTries, 1, 0},
		{"elapsed", []play{cut}, patient, 0, semelclient.ReasonElapsed, 0, 20 * time.Second},
		{"Retry-After beyond the elapsed", []play{reply(429, "", "Retry-After: 21")}, patient, 0, semelclient.ReasonElapsed, 1, 0},
		{"endless Retry-After", []play{reply(429, "", "Retry-After: 9999999999999999999999")}, patient, 0, semelclient.ReasonElapsed, 1, 0},
		{"Retry-After beyond the deadline", []play{reply(429, "", "Retry-After: 10")}, patient, 9 * time.Second, semelclient.ReasonElapsed, 1, 0},
		{"deadline in a try", []play{hang}, patient, 9 * time.Second, semelclient.ReasonContext, 1, 9 * time.Second},
		{"hangs beyond the elapsed", []play{hang}, patient, 0, semelclient.ReasonElapsed, 1, 20 * time.Second},
		{"a later try hangs beyond the elapsed", []play{cut, hang}, patient, 0, semelclient.ReasonElapsed, 2, 20 * time.Second},
		{"hangs, no bound but tries", []play{hang}, func(c *semelclient.Config) {
			c.TryTimeout, c.MaxTries = 3*time.Second, 2
		}, 0, semelclient.ReasonTries, 2, 6*time.Second + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				var gaveUp []semelclient.GaveUp
				var tried []semelclient.Tried
				base := &script{answers: tt.answers}
				tr := transport(t, base, tt.config, func(c *semelclient.Config) {
					c.Observer.GaveUp = func(_ context.Context, g semelclient.GaveUp) { gaveUp = append(gaveUp, g) }
					c.Observer.Tried = func(_ context.Context, g semelclient.Tried) { tried = append(tried, g) }
				})
				begin := time.Now()
				resp, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
				took := time.Since(begin)
				if len(gaveUp) != 1 || gaveUp[0].Reason != tt.reason || gaveUp[0].Tries != len(base.sent) || gaveUp[0].Method != "POST" {
					t.Errorf("gave up: %+v after %d tries; want the reason %q", gaveUp, len(base.sent), tt.reason)
				}
				if err == nil {
					_ = resp.Body.Close()
					if gaveUp[0].Status != resp.StatusCode || gaveUp[0].Err != nil {
						t.Errorf("gave up: %+v; the answer was %d", gaveUp, resp.StatusCode)
					}
				} else if e := failure(t, err); e.Reason != tt.reason || e.Tries != len(base.sent) || gaveUp[0].Err != e.Err || e.Effect() != semel.EffectMaybe {
					t.Errorf("error %+v", e)
				}
				if took > tt.atMost || tt.tries != 0 && len(base.sent) != tt.tries || tt.tries == 0 && len(base.sent) < 10 {
					t.Errorf("%d tries in %v; want %d in at most %v", len(base.sent), took, tt.tries, tt.atMost)
				}
				if len(tried) != len(base.sent) {
					t.Fatalf("the observer saw %d tries of %d", len(tried), len(base.sent))
				}
				for i, g := range tried {
					last := i == len(tried)-1
					if g.Try != i+1 || g.Retry == last || !g.Keyed || g.Method != "POST" || (g.Err == nil) == (g.Status == 0) {
						t.Errorf("try %d was observed as %+v", i+1, g)
					}
					if !last && base.sent[i+1].at.Sub(base.sent[i].at) != g.Wait+g.Took {
						t.Errorf("try %d: waited %v; observed %v after %v", i+1, base.sent[i+1].at.Sub(base.sent[i].at), g.Wait, g.Took)
					}
				}
			})
		})
	}
}

// TestTransportCancel: the end of the context ends a wait and a try at once.
func TestTransportCancel(t *testing.T) {
	cause := errors.New("the user left")
	for name, first := range map[string]play{"in a wait": reply(429, "", "Retry-After: 30"), "in a try": hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := &script{answers: []play{first, reply(201, "")}}
				tr := transport(t, base)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(3*time.Second, func() { cancel(cause) })
				begin := time.Now()
				_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
				e := failure(t, err)
				if took := time.Since(begin); took != 3*time.Second || !errors.Is(err, cause) || e.Reason != semelclient.ReasonContext || e.Tries != 1 || len(base.sent) != 1 {
					t.Errorf("after %v: %d tries, %+v", took, len(base.sent), e)
				}
				// A 429 has no effect by definition; what hung may have one.
				if want := name == "in a wait"; errors.Is(err, semel.ErrNoEffect) != want || errors.Is(err, semel.ErrMaybeEffect) == want {
					t.Errorf("effect %v", e.Effect())
				}
			})
		})
	}
}

// TestTransportTryTimeout: a hung try is ended and made again under its key; the
// timeout does not cut the answer's body.
func TestTransportTryTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(r *http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			go func() {
				time.Sleep(time.Minute)
				_, _ = io.WriteString(out, "slow")
				_ = out.CloseWithError(context.Cause(r.Context()))
			}()
			resp, _ := reply(201, "")(r)
			resp.Body = in
			return resp, nil
		}
		base := &script{answers: []play{hang, slow}}
		tr := transport(t, base, func(c *semelclient.Config) { c.TryTimeout = time.Second })
		status, body := roundTrip(t, tr, request(t, t.Context(), "POST", "{}"))
		if status != 201 || body != "slow" || len(base.sent) != 2 || base.sent[0].key != base.sent[1].key {
			t.Errorf("answer %d %q with the keys %q", status, body, base.keys())
		}

		base = &script{answers: []play{func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err() // without the cause
		}}}
		tr = transport(t, base, func(c *semelclient.Config) { c.TryTimeout = time.Second })
		_, err := tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
		if e := failure(t, err); !errors.Is(err, semelclient.ErrTryTimeout) || !e.Timeout() || e.Effect() != semel.EffectMaybe || e.Tries != semelclient.DefaultMaxTries {
			t.Errorf("error %+v", e)
		}
	})
}

func TestTransportConfig(t *testing.T) {
	_, err := semelclient.New(semelclient.Config{
		Header: "no token", Repeatability: true, MaxTries: -1, MaxElapsed: -1, MinBackoff: -1, MaxBackoff: -2, TryTimeout: -1, MaxReplayBody: -1,
	})
	for _, field := range []string{"Header", "Repeatability", "MaxTries", "MaxElapsed", "MinBackoff", "MaxBackoff", "TryTimeout", "MaxReplayBody"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	if _, err := semelclient.New(semelclient.Config{MinBackoff: time.Hour}); err != nil {
		t.Errorf("a backoff above the default maximum: %v", err)
	}
	if _, err := semelclient.New(semelclient.Config{Repeatability: true}); err != nil {
		t.Error(err)
	}
}
