package outbox

import (
	"context"
	"errors"
	"testing"
)

// A delivery's context behaves like any other, whenever its methods are called.
func TestAttempt(t *testing.T) {
	cause := errors.New("lost")
	type key struct{}
	for name, tt := range map[string]struct {
		end        func(a *attempt, claim context.CancelCauseFunc)
		err, cause error
	}{
		"not ended":            {func(*attempt, context.CancelCauseFunc) {}, nil, nil},
		"ended":                {func(a *attempt, _ context.CancelCauseFunc) { a.end(nil) }, context.Canceled, context.Canceled},
		"with a cause":         {func(a *attempt, _ context.CancelCauseFunc) { a.end(cause) }, context.Canceled, cause},
		"twice":                {func(a *attempt, _ context.CancelCauseFunc) { a.end(cause); a.end(nil) }, context.Canceled, cause},
		"with its claim":       {func(_ *attempt, claim context.CancelCauseFunc) { claim(errDrained) }, context.Canceled, errDrained},
		"after its claim":      {func(a *attempt, claim context.CancelCauseFunc) { claim(errDrained); a.end(cause) }, context.Canceled, errDrained},
		"before its claim":     {func(a *attempt, claim context.CancelCauseFunc) { a.end(cause); claim(errDrained) }, context.Canceled, cause},
		"by nobody, and asked": {func(a *attempt, _ context.CancelCauseFunc) { a.Done() }, nil, nil},
	} {
		for _, asked := range []bool{false, true} {
			claim, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
			a := &attempt{claim: claim, id: "id"}
			var child context.Context = context.Background()
			if asked {
				var stop context.CancelFunc
				child, stop = context.WithCancel(a)
				defer stop()
			}
			tt.end(a, cancel)
			ended := false
			select {
			case <-a.Done():
				ended = true
			default:
			}
			if a.Err() != tt.err || ended != (tt.err != nil) || context.Cause(a) != tt.cause {
				t.Errorf("%s, asked before %v: %v, done %v, because %v", name, asked, a.Err(), ended, context.Cause(a))
			}
			if asked && (child.Err() != tt.err || context.Cause(child) != tt.cause) {
				t.Errorf("%s: of a child: %v, because %v", name, child.Err(), context.Cause(child))
			}
			if OriginOf(a) != "id" || a.Value(key{}) != "value" {
				t.Errorf("%s: it carries %q, %v", name, OriginOf(a), a.Value(key{}))
			}
			cancel(nil)
		}
	}
}
