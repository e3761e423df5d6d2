package outbox

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestRetrySpan(t *testing.T) {
	for _, c := range []struct {
		route Route
		asked time.Duration
		want  time.Duration
	}{
		{Route{}, 0, 8*time.Hour + 18*time.Minute + 15*time.Second},
		{Route{MaxAttempts: 1}, time.Hour, 30 * time.Second},
		{Route{MaxAttempts: 3, Timeout: time.Minute, Backoff: time.Second}, 0, 3*time.Minute + 3*time.Second},
		{Route{MaxAttempts: 3, Timeout: time.Minute, Backoff: time.Hour}, 10 * time.Minute, 2*time.Hour + 3*time.Minute},
		{Route{MaxAttempts: 3, Timeout: time.Minute}, 240 * time.Hour, 52*time.Hour + 48*time.Minute + 3*time.Minute},
		{Route{MaxAttempts: math.MaxInt}, 0, 1 << 62},
		{Route{Schedule: []time.Duration{time.Second, time.Minute}, MaxAttempts: 5, Timeout: time.Second}, 0, 3*time.Minute + 6*time.Second},
	} {
		if got := c.route.RetrySpan(c.asked); got != c.want {
			t.Errorf("%+v: %v; want %v", c.route, got, c.want)
		}
	}
	for range 1000 {
		r := Route{
			MaxAttempts: 1 + rand.IntN(40), Timeout: time.Duration(1 + rand.Int64N(int64(time.Minute))),
			Backoff: time.Duration(1 + rand.Int64N(int64(time.Minute))),
		}.withDefaults()
		asked := time.Duration(rand.Int64N(int64(30 * time.Hour)))
		took := r.Timeout
		for n := 1; n < r.MaxAttempts; n++ {
			took += r.delay(n, asked*time.Duration(rand.IntN(2))) + r.Timeout
		}
		if span := r.RetrySpan(asked); span < took-time.Duration(r.MaxAttempts) { // each may be rounded down
			t.Fatalf("%+v, asked for %v: it took %v; the span is %v", r, asked, took, span)
		}
	}
}
