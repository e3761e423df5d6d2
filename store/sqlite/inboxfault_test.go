package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
)

// Every statement of a message's life fails once, or is carried out and its answer
// lost, in the store and in the handler. Who delivers again until there is no error
// has every effect once, and an outbox message with each.
func TestInboxEveryFault(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("answer lost ", lost), func(t *testing.T) {
			t.Parallel()
			n, unknown := 1, 0
			for inboxFaultAt(t, n, lost, &unknown) {
				n++
			}
			if n < 15 {
				t.Errorf("only %d points", n-1)
			}
			if unknown == 0 {
				t.Error("nothing was told as unknown")
			}
		})
	}
}

func inboxFaultAt(t *testing.T, n int, lost bool, unknown *int) (hit bool) {
	ctx := t.Context()
	f := &faults{}
	s := openFaulty(t, f, Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	if _, err := write(ctx, s, 0, func(tx *tx) (none, error) {
		_, err := tx.exec("CREATE TABLE effect (id TEXT) STRICT")
		return none{}, err
	}); err != nil {
		t.Fatal(err)
	}
	b, err := inbox.New(inbox.Config{Store: s.Inbox(), Consumer: "c", RetrySpan: time.Hour, Remember: 10})
	if err != nil {
		t.Fatal(err)
	}
	where := ""
	f.arm(func(call int, query string, _ []driver.Value) (before, after bool) {
		if call != n {
			return false, false
		}
		hit, where = true, query
		return !lost, lost
	})
	todo := []inbox.Message{{ID: "a"}, {ID: "b"}, {ID: "a"}, {ID: "c"}}
	told := map[string]int{} // done, not duplicate
	for try := 0; len(todo) > 0; try++ {
		if try == 5 {
			t.Fatalf("at call %d, %s: %v are left", n, where, todo)
		}
		var again []inbox.Message
		for i, r := range b.ProcessBatch(ctx, todo, func(ctx context.Context, i int) error {
			tx, _ := Tx(ctx)
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?)", todo[i].ID)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO outbox (id, topic) VALUES (?, 't')", todo[i].ID)
			return err
		}) {
			switch {
			case errors.Is(r.Err, inbox.ErrUnknown):
				*unknown++
				again = append(again, todo[i])
			case r.Err != nil:
				again = append(again, todo[i])
			case r.Outcome == inbox.OutcomeDone:
				told[todo[i].ID]++
			}
		}
		todo = again
	}
	// What follows has what failed behind it.
	if _, err := b.Process(ctx, "d", func(context.Context) error { return nil }); err != nil {
		if _, err = b.Process(ctx, "d", func(context.Context) error { return nil }); err != nil {
			t.Errorf("at call %d, %s: what follows: %v", n, where, err)
		}
	}
	f.arm(nil)
	var effects, messages, ids []string
	if err := s.read(ctx, func(c *conn) error {
		return errors.Join(
			c.queryOnce(ctx, "SELECT id FROM effect ORDER BY id", func(r *row) { effects = append(effects, r.text()) }),
			c.queryOnce(ctx, "SELECT id FROM outbox ORDER BY id", func(r *row) { messages = append(messages, r.text()) }),
			c.queryOnce(ctx, "SELECT id FROM inbox ORDER BY id", func(r *row) { ids = append(ids, r.text()) }))
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"a", "b", "c"}
	if !slices.Equal(effects, want) || !slices.Equal(messages, want) || !slices.Equal(ids, append(want, "d")) {
		t.Errorf("at call %d, %s: effects %q, messages %q, ids %q", n, where, effects, messages, ids)
	}
	for id, times := range told {
		if times > 1 {
			t.Errorf("at call %d, %s: %s was done %d times", n, where, id, times)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("at call %d, %s: close: %v", n, where, err)
	}
	return hit
}

// No query of the inbox reads through the table, and none sorts.
func TestInboxQueriesUseTheirIndexes(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	if err := s.read(t.Context(), func(c *conn) error {
		for query, index := range map[string]string{
			selectReceived: "PRIMARY KEY", deleteReceived: "inbox_at", countReceived: "inbox",
		} {
			for _, p := range []string{"?1", "?2", "?3", "?"} {
				query = strings.ReplaceAll(query, p, "'1'")
			}
			var plan []string
			if err := c.queryOnce(t.Context(), "EXPLAIN QUERY PLAN "+query, func(r *row) { _, _, _ = r.int(), r.int(), r.int(); plan = append(plan, r.text()) }); err != nil {
				return fmt.Errorf("%s: %w", query, err)
			}
			all := strings.Join(plan, "\n")
			if !strings.Contains(all, index) || strings.Contains(all, "SCAN inbox") || strings.Contains(all, "TEMP B-TREE") {
				t.Errorf("%s\n%s", query, all)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
