package semel

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A lazyContext is what package context would have made, whenever somebody asks.
func TestLazyContext(t *testing.T) {
	type valueKey struct{}
	boom := errors.New("boom")
	for i := range 4 {
		early := i&1 > 0 // asked for before it ends, not after
		var expired error
		if i&2 > 0 {
			expired = ErrDeadline
		}
		for name, tc := range map[string]struct {
			end       func(*lazyContext)
			err, what error
		}{
			"alive":              {func(*lazyContext) {}, nil, nil},
			"ended":              {func(c *lazyContext) { c.end(nil) }, context.Canceled, context.Canceled},
			"ended for a reason": {func(c *lazyContext) { c.end(boom); c.end(nil) }, context.Canceled, boom},
			"expired":            {func(*lazyContext) { time.Sleep(time.Hour + 1) }, context.DeadlineExceeded, ErrDeadline},
			"expired, then ended": {func(c *lazyContext) {
				time.Sleep(time.Hour + 1)
				c.end(boom)
			}, context.DeadlineExceeded, ErrDeadline},
		} {
			if expired == nil { // it has no causes
				if tc.what == boom {
					continue
				}
				tc.what = tc.err
			}
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, 7))
				c := &lazyContext{parent: parent, deadline: time.Now().Add(time.Hour), expired: expired}
				cancel() // nothing of which is the child's
				var child context.Context
				var after int
				derive := func() {
					var stop context.CancelFunc
					child, stop = context.WithCancel(context.WithValue(c, valueKey{}, 8))
					t.Cleanup(stop)
					context.AfterFunc(child, func() { after++ })
				}
				if early {
					derive()
				}
				if c.Err() != nil || c.Value(valueKey{}) != 7 {
					t.Errorf("%s: at the beginning: %v, %v", name, c.Err(), c.Value(valueKey{}))
				}
				tc.end(c)
				if err := c.Err(); err != tc.err {
					t.Errorf("%s, early %v: Err is %v; want %v", name, early, err, tc.err)
				}
				if !early {
					derive()
				}
				synctest.Wait()
				select {
				case <-c.Done():
					if tc.err == nil {
						t.Errorf("%s: it is done", name)
					}
				default:
					if tc.err != nil {
						t.Errorf("%s: it is not done", name)
					}
				}
				if c.Err() != tc.err || context.Cause(c) != tc.what || child.Err() != tc.err || context.Cause(child) != tc.what {
					t.Errorf("%s, early %v: %v because of %v, and the child %v because of %v", name, early, c.Err(), context.Cause(c), child.Err(), context.Cause(child))
				}
				if (after == 1) != (tc.err != nil) {
					t.Errorf("%s: AfterFunc ran %d times", name, after)
				}
				if d, ok := child.Deadline(); !ok || !d.Equal(c.deadline) {
					t.Errorf("%s: the deadline is %v", name, d)
				}
				c.end(nil)
			})
		}
	}
}
