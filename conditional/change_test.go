package conditional_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel/conditional"
)

func TestApply(t *testing.T) {
	broken := errors.New("the disk is full")
	done := func(done bool, err error) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) { return done, err }
	}
	failed := func(err error) bool { _, ok := errors.AsType[*conditional.FailedError](err); return ok }
	for _, tt := range []struct {
		name   string
		kind   string
		expect int64 // 0 for no precondition
		alter  func(d *row, c *conditional.Change)
		want   conditional.Result
		err    func(error) bool
		writes int
	}{
		{name: "no precondition", kind: there, want: conditional.Result{Version: 8}, writes: 1},
		{name: "the version", kind: there, expect: 7, want: conditional.Result{Version: 8}, writes: 1},
		{name: "another version", kind: there, expect: 6, err: failed},
		{name: "no version", kind: there, expect: -1, err: failed},
		{name: "never there", kind: never, err: func(err error) bool { return errors.Is(err, conditional.ErrNotFound) }},
		{
			name: "created", kind: never, alter: func(_ *row, c *conditional.Change) { c.Creates = true },
			want: conditional.Result{Version: 1, Created: true}, writes: 1,
		},
		{
			name: "created again", kind: gone, alter: func(_ *row, c *conditional.Change) { c.Creates = true },
			want: conditional.Result{Version: 8, Created: true}, writes: 1,
		},
		{
			name: "done before", kind: there, expect: 6, alter: func(_ *row, c *conditional.Change) { c.Done = done(true, nil) },
			want: conditional.Result{Version: 7, Repeated: true},
		},
		{name: "not done before", kind: there, expect: 6, alter: func(_ *row, c *conditional.Change) { c.Done = done(false, nil) }, err: failed},
		{
			name: "whether it was done cannot be found out", kind: there, expect: 6,
			alter: func(_ *row, c *conditional.Change) { c.Done = done(false, broken) },
			err:   func(err error) bool { return err == broken },
		},
		{
			name: "Done is not asked without need", kind: there, expect: 7, alter: func(_ *row, c *conditional.Change) { c.Done = done(true, broken) },
			want: conditional.Result{Version: 8}, writes: 1,
		},
		{
			name: "deleted before", kind: gone, expect: 6, alter: func(_ *row, c *conditional.Change) { c.Done = done(true, nil) },
			want: conditional.Result{Version: 7, Repeated: true},
		},
		{
			name: "the look fails", kind: there, err: func(err error) bool { return err == broken },
			alter: func(_ *row, c *conditional.Change) {
				c.Current = func(context.Context) (conditional.State, error) { return conditional.State{}, broken }
			},
		},
		{
			name: "the write fails", kind: there, err: func(err error) bool { return err == broken },
			alter: func(_ *row, c *conditional.Change) {
				c.Write = func(context.Context, int64, int64) (int64, error) { return 0, broken }
			},
		},
		{
			name: "several rows", kind: there, err: func(err error) bool { return err != nil && strings.Contains(err.Error(), "2 rows") },
			alter: func(_ *row, c *conditional.Change) {
				c.Write = func(context.Context, int64, int64) (int64, error) { return 2, nil }
			},
		},
		{
			name: "the statement has another condition", kind: there,
			err: func(err error) bool { return errors.Is(err, conditional.ErrNotWritten) },
			alter: func(_ *row, c *conditional.Change) {
				c.Write = func(context.Context, int64, int64) (int64, error) { return 0, nil }
			},
		},
		{
			name: "quicker once", kind: there, want: conditional.Result{Version: 9}, writes: 2,
			alter: func(d *row, c *conditional.Change) { others(d, c, 1) },
		},
		{name: "quicker once, with a precondition", kind: there, expect: 7, err: failed, writes: 1, alter: func(d *row, c *conditional.Change) { others(d, c, 1) }},
		{
			name: "quicker for ever", kind: there, err: func(err error) bool { return errors.Is(err, conditional.ErrContended) }, writes: 10,
			alter: func(d *row, c *conditional.Change) { others(d, c, 1000) },
		},
		{
			name: "created meanwhile", kind: never, err: nil, want: conditional.Result{Version: 2}, writes: 2,
			alter: func(d *row, c *conditional.Change) { c.Creates = true; others(d, c, 1) },
		},
	} {
		d := newRow(tt.kind)
		c := d.change("changed")
		if tt.alter != nil {
			tt.alter(d, &c)
		}
		ctx := t.Context()
		if tt.expect != 0 {
			ctx = conditional.Expect(ctx, tt.expect)
		}
		got, err := conditional.Apply(ctx, c)
		if got != tt.want || (err != nil) != (tt.err != nil) || tt.err != nil && !tt.err(err) || d.writes != tt.writes {
			t.Errorf("%s: %+v after %d writes: %v", tt.name, got, d.writes, err)
		}
	}
}

// others has somebody else change d just before each of the first n writes of c.
func others(d *row, c *conditional.Change, n int) {
	write := c.Write
	other := d.change("other")
	c.Write = func(ctx context.Context, found, next int64) (int64, error) {
		if n--; n >= 0 {
			s, _ := other.Current(ctx)
			if _, err := other.Write(ctx, s.Version, s.Version+1); err != nil {
				return 0, err
			}
		}
		return write(ctx, found, next)
	}
}

// What is no change to the request's target does not answer for its precondition.
func TestWithout(t *testing.T) {
	order, stock := newRow(there), newRow(there)
	stock.state.Version = 20
	ctx := conditional.Expect(t.Context(), 7)
	if _, err := conditional.Apply(conditional.Without(ctx), stock.change("less")); err != nil {
		t.Error(err)
	}
	if _, err := conditional.Apply(ctx, order.change("sold")); err != nil {
		t.Error(err)
	}
	if order.state.Version != 8 || stock.state.Version != 21 {
		t.Errorf("versions %d and %d", order.state.Version, stock.state.Version)
	}
}

var approvals = []conditional.Transition{
	{Event: "approve", From: []string{"draft", "submitted"}, To: "approved"},
	{Event: "auto-approve", From: []string{"submitted"}, To: "approved"},
	{Event: "pay", From: []string{"approved"}, To: "paid"},
	{Event: "cancel", From: []string{"draft", "approved"}, To: "cancelled"},
	{Event: "cancel", From: []string{"paid"}, To: "refunding"},
}

// order is a subject in memory.
type order struct {
	mu    sync.Mutex
	at    conditional.Position
	moves int
}

func (o *order) subject() conditional.Subject {
	return conditional.Subject{
		Current: func(context.Context) (conditional.Position, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.at, nil
		},
		Move: func(_ context.Context, m conditional.Move) (int64, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.at.State != m.From || o.at.Version != m.Found {
				return 0, nil
			}
			o.at = conditional.Position{State: m.To, Event: m.Event, Version: m.Next}
			o.moves++
			return 1, nil
		},
	}
}

func TestTable(t *testing.T) {
	table, err := conditional.NewTable(approvals...)
	if err != nil {
		t.Fatal(err)
	}
	at := func(state, event string) conditional.Position {
		return conditional.Position{State: state, Event: event, Version: 3}
	}
	const (
		moved   = "moved"
		again   = "repeated"
		refused = "not allowed"
		failed  = "precondition"
		missing = "not found"
		other   = "another error"
	)
	for _, tt := range []struct {
		name   string
		at     conditional.Position
		event  string
		expect int64
		want   string
		state  string
	}{
		{"from one state", at("draft", ""), "approve", 0, moved, "approved"},
		{"from another", at("submitted", "submit"), "approve", 0, moved, "approved"},
		{"repeated", at("approved", "approve"), "approve", 0, again, "approved"},
		{"by another event", at("approved", "auto-approve"), "approve", 0, refused, "approved"},
		{"by nobody knows which", at("approved", ""), "approve", 0, other, "approved"},
		{"only one leads there", at("paid", ""), "pay", 0, again, "paid"},
		{"not allowed", at("draft", ""), "pay", 0, refused, "draft"},
		{"moved on since", at("paid", "pay"), "approve", 0, refused, "paid"},
		{"two ways", at("approved", "approve"), "cancel", 0, moved, "cancelled"},
		{"the other way", at("paid", "pay"), "cancel", 0, moved, "refunding"},
		{"repeated either way", at("refunding", "cancel"), "cancel", 0, again, "refunding"},
		{"nothing there", conditional.Position{}, "approve", 0, missing, ""},
		{"no such event", at("draft", ""), "ship", 0, other, "draft"},
		{"no such state", at("lost", ""), "approve", 0, refused, "lost"},
		{"the version", at("draft", ""), "approve", 3, moved, "approved"},
		{"another version", at("draft", ""), "approve", 2, failed, "draft"},
		{"another version, repeated", at("approved", "approve"), "approve", 2, again, "approved"},
		{"another version, not allowed", at("draft", ""), "pay", 2, refused, "draft"},
		{"without versions", conditional.Position{State: "draft"}, "approve", 0, moved, "approved"},
		{"a precondition without versions", conditional.Position{State: "draft"}, "approve", 3, other, "draft"},
	} {
		o := &order{at: tt.at}
		ctx := t.Context()
		if tt.expect != 0 {
			ctx = conditional.Expect(ctx, tt.expect)
		}
		m, err := table.Apply(ctx, tt.event, o.subject())
		got := other
		if _, ok := errors.AsType[*conditional.FailedError](err); ok {
			got = failed
		} else if e, ok := errors.AsType[*conditional.TransitionError](err); ok && e.State == tt.at.State && e.Event == tt.event {
			got = refused
		} else if errors.Is(err, conditional.ErrNotFound) {
			got = missing
		} else if err == nil && m.Repeated {
			got = again
		} else if err == nil {
			got = moved
		}
		moves := 0
		if tt.want == moved {
			moves = 1
		}
		if got != tt.want || o.at.State != tt.state || o.moves != moves || err == nil && (m.State != tt.state || m.Version != o.at.Version) {
			t.Errorf("%s: %s, now in %s after %d moves, told %+v: %v", tt.name, got, o.at.State, o.moves, m, err)
		}
	}
}

func TestTableRaces(t *testing.T) {
	table, err := conditional.NewTable(approvals...)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("moved meanwhile", func(t *testing.T) {
		o := &order{at: conditional.Position{State: "draft", Version: 1}}
		s := o.subject()
		move := s.Move
		s.Move = func(ctx context.Context, m conditional.Move) (int64, error) {
			if o.moves == 0 {
				if _, err := table.Apply(ctx, "approve", o.subject()); err != nil {
					t.Error(err)
				}
			}
			return move(ctx, m)
		}
		if m, err := table.Apply(t.Context(), "approve", s); err != nil || !m.Repeated || m.Version != 2 || o.moves != 1 {
			t.Errorf("%+v after %d moves: %v", m, o.moves, err)
		}
	})
	t.Run("another condition", func(t *testing.T) {
		o := &order{at: conditional.Position{State: "draft", Version: 1}}
		s := o.subject()
		s.Move = func(context.Context, conditional.Move) (int64, error) { return 0, nil }
		if _, err := table.Apply(t.Context(), "approve", s); !errors.Is(err, conditional.ErrNotWritten) {
			t.Error(err)
		}
	})
	t.Run("all at once", func(t *testing.T) {
		o := &order{at: conditional.Position{State: "draft", Version: 1}}
		var wg sync.WaitGroup
		for i := range 100 {
			event := []string{"approve", "cancel"}[i%2]
			wg.Go(func() {
				m, err := table.Apply(context.Background(), event, o.subject())
				if _, refused := errors.AsType[*conditional.TransitionError](err); err != nil && !refused {
					t.Error(err)
				} else if err == nil && m.State != map[string]string{"approve": "approved", "cancel": "cancelled"}[event] {
					t.Errorf("%s led to %s", event, m.State)
				}
			})
		}
		wg.Wait()
		// An approved order can be cancelled.
		if o.at.State == "cancelled" && o.moves > 2 || o.at.State == "approved" && o.moves != 1 {
			t.Errorf("%d moves to %s", o.moves, o.at.State)
		}
	})
}

func TestNewTable(t *testing.T) {
	_, err := conditional.NewTable(
		conditional.Transition{Event: "", From: []string{"a"}, To: "b"},
		conditional.Transition{Event: "e", From: nil, To: "b"},
		conditional.Transition{Event: "e", From: []string{"a", ""}, To: "b"},
		conditional.Transition{Event: "e", From: []string{"a"}, To: ""},
		conditional.Transition{Event: "e", From: []string{"a", "b"}, To: "b"},
		conditional.Transition{Event: "e", From: []string{"a"}, To: "c"},
		conditional.Transition{Event: "f", From: []string{"a", "a"}, To: "c"},
	)
	for i := range 7 {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("transition %d:", i)) {
			t.Errorf("transition %d is accepted: %v", i, err)
		}
	}
	if _, err := conditional.NewTable(); err == nil {
		t.Error("an empty table is accepted")
	}
}
