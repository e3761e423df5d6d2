package storekit

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/semelhq/semel"
)

// A result that cannot be kept is told as too large, so that its operation is
// recorded all the same.
func TestCheckSize(t *testing.T) {
	read := func(context.Context, int) ([]byte, error) { return nil, nil }
	for name, tt := range map[string]struct {
		r  semel.Result
		ok bool
	}{
		"as large as may be":           {semel.Result{Head: make([]byte, 2), Body: make([]byte, 6), Reference: "ab"}, true},
		"one more":                     {semel.Result{Head: make([]byte, 2), Body: make([]byte, 7), Reference: "ab"}, false},
		"pieces as large as may be":    {semel.Result{Head: make([]byte, 2), Pieces: &semel.Pieces{Size: 8, Read: read}}, true},
		"pieces and one more":          {semel.Result{Head: make([]byte, 2), Pieces: &semel.Pieces{Size: 9, Read: read}}, false},
		"a size that somebody made up": {semel.Result{Head: make([]byte, 2), Pieces: &semel.Pieces{Size: math.MaxInt64, Read: read}}, false},
		"no size":                      {semel.Result{Pieces: &semel.Pieces{Read: read}}, false},
		"nothing to read":              {semel.Result{Pieces: &semel.Pieces{Size: 8}}, false},
		"a body and pieces":            {semel.Result{Body: make([]byte, 1), Pieces: &semel.Pieces{Size: 1, Read: read}}, false},
	} {
		if err := CheckSize(tt.r, 10); (err == nil) != tt.ok || err != nil && !errors.Is(err, semel.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCut(t *testing.T) {
	for _, s := range []string{"", strings.Repeat("x", MaxTextBytes)} {
		if got := Cut(s); got != s {
			t.Errorf("%d bytes became %d", len(s), len(got))
		}
	}
	if got := Cut(strings.Repeat("x", MaxTextBytes-1) + "é"); len(got) != MaxTextBytes-1 {
		t.Errorf("cut in a character, or too early: %d bytes", len(got))
	}
	if got := Cut(strings.Repeat("\x80", 2*MaxTextBytes)); len(got) > MaxTextBytes || len(got) < MaxTextBytes-4 {
		t.Errorf("what is no UTF-8 was cut at %d bytes", len(got))
	}
}
