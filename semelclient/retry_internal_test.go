package semelclient

import (
	"math/big"
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		value, date string
		want        time.Duration
		ok          bool
	}{
		{"", "", 0, false},
		{"0", "", 0, true},
		{"7", "", 7 * time.Second, true},
		{" 7\t", "", 7 * time.Second, true},
		{"007", "", 7 * time.Second, true},
		{"-7", "", 0, false},
		{"+7", "", 0, false},
		{"7.5", "", 0, false},
		{"7, 8", "", 0, false},
		{"soon", "", 0, false},
		{"31536001", "", longestRetryAfter, true},
		{"99999999999999999999999999", "", longestRetryAfter, true},
		{"Sat, 21 Nov 2026 12:00:09 GMT", "", 9 * time.Second, true},
		{"Sat, 21 Nov 2026 11:00:00 GMT", "", 0, true},
		{"Saturday, 21-Nov-26 12:00:09 GMT", "", 9 * time.Second, true},
		{"Sat Nov 21 12:00:09 2026", "", 9 * time.Second, true},
		{"Sat, 21 Nov 9999 12:00:09 GMT", "", longestRetryAfter, true},
		// The server's clock is an hour behind, and so is its date.
		{"Sat, 21 Nov 2026 11:00:09 GMT", "Sat, 21 Nov 2026 11:00:00 GMT", 9 * time.Second, true},
		{"Sat, 21 Nov 2026 12:00:09 GMT", "yesterday", 9 * time.Second, true},
		{"7", "Sat, 21 Nov 2026 11:00:00 GMT", 7 * time.Second, true},
	}
	for _, tt := range tests {
		h := http.Header{"Date": {tt.date}}
		if tt.value != "" {
			h.Set("Retry-After", tt.value)
		}
		if got, ok := retryAfter(h, now); got != tt.want || ok != tt.ok {
			t.Errorf("Retry-After %q, Date %q: %v, %v; want %v, %v", tt.value, tt.date, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "120", "9223372036854775807", "-1", "Sat, 21 Nov 2026 12:00:09 GMT", "Sat, 21 Nov 0001 12:00:09 GMT"} {
		f.Add(s, "")
		f.Add(s, "Sat, 21 Nov 9999 12:00:00 GMT")
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string) {
		got, ok := retryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, now)
		if got < 0 || got > longestRetryAfter || !ok && got != 0 {
			t.Fatalf("%v, %v", got, ok)
		}
		n, isInt := new(big.Int).SetString(value, 10)
		if isInt && n.Sign() >= 0 && value[0] != '+' && value[0] != '-' {
			want := longestRetryAfter
			if n.Cmp(big.NewInt(int64(longestRetryAfter/time.Second))) <= 0 {
				want = time.Duration(n.Int64()) * time.Second
			}
			if !ok || got != want {
				t.Fatalf("%q: %v, %v; want %v", value, got, ok, want)
			}
		}
	})
}

func TestBackoffBounds(t *testing.T) {
	tr, err := New(Config{MinBackoff: 100 * time.Millisecond, MaxBackoff: 350 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for try, bound := range map[int]time.Duration{1: 100, 2: 200, 3: 350, 4: 350, 1000: 350} {
		bound *= time.Millisecond
		var low, high int
		for range 1000 {
			switch d := tr.backoff(try); {
			case d < 0 || d > bound:
				t.Fatalf("after try %d: %v; the bound is %v", try, d, bound)
			case d < bound/4:
				low++
			case d > bound*3/4:
				high++
			}
		}
		if low == 0 || high == 0 { // one in 10^125 runs of correct code
			t.Errorf("after try %d: %d low and %d high waits: the jitter is not full", try, low, high)
		}
	}
	huge, err := New(Config{MinBackoff: 1, MaxBackoff: 1<<63 - 1})
	if err != nil {
		t.Fatal(err)
	}
	for try := range 200 {
		if d := huge.backoff(try); d < 0 {
			t.Fatalf("after try %d: %v", try, d)
		}
	}
}
