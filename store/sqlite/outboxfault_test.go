package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
)

// OutboxQueries returns queries of the outbox, with parameters written as 1, and
// the index that each shall use.
func OutboxQueries() map[string]string {
	list := func(f outbox.Filter) string { q, _ := selection(f, "position", "true"); return q }
	queries := map[string]string{
		selectFresh: "outbox_due", selectFirst: "outbox_due", claimRun: "INTEGER PRIMARY KEY", claimSome: "INTEGER PRIMARY KEY",
		settleFree + positionRun: "INTEGER PRIMARY KEY", settleKeyed + positionSome: "INTEGER PRIMARY KEY",
		selectOverdue: "outbox_due", existsDue: "outbox_due", selectDueTopics: "outbox_due", existsDelayed: "outbox_due",
		selectWaitingTopics: "outbox_waiting", countPending: "COVERING INDEX outbox_waiting", selectGivenUp: "outbox_settled", selectSurplus: "outbox_settled", deleteMessages: "outbox_settled",
		list(outbox.Filter{ID: "x"}): "sqlite_autoindex_outbox_1", list(outbox.Filter{State: outbox.StateDead}): "outbox_settled",
	}
	out := map[string]string{}
	for q, index := range queries {
		for _, p := range []string{"?1", "?2", "?3", "?"} {
			q = strings.ReplaceAll(q, p, "1")
		}
		out[q] = index
	}
	return out
}

// No query of a relay reads through the table, however many messages wait.
func TestOutboxQueriesUseTheirIndexes(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	if err := s.read(t.Context(), func(c *conn) error {
		for query, index := range OutboxQueries() {
			var plan []string
			if err := c.queryOnce(t.Context(), "EXPLAIN QUERY PLAN "+query, func(r *row) { _, _, _ = r.int(), r.int(), r.int(); plan = append(plan, r.text()) }); err != nil {
				return fmt.Errorf("%s: %w", query, err)
			}
			for _, step := range plan {
				if strings.HasPrefix(step, "SCAN o") && !strings.Contains(step, "USING COVERING INDEX") || strings.Contains(step, "TEMP B-TREE") && index != "outbox_settled" {
					t.Errorf("%s\n%s", query, strings.Join(plan, "\n"))
				}
			}
			if !strings.Contains(strings.Join(plan, "\n"), index) {
				t.Errorf("%s\ndoes not use %s:\n%s", query, index, strings.Join(plan, "\n"))
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Every statement of a relay's life fails once, or is carried out and its answer
// lost. A relay that asks again delivers everything, each lane in order, and what
// is told as settled is.
func TestOutboxEveryFault(t *testing.T) {
	quick.LeaveOut(t)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("answer lost ", lost), func(t *testing.T) {
			n := 1
			for outboxFaultAt(t, n, lost) {
				n++
			}
			if n < 30 {
				t.Errorf("only %d points", n-1)
			}
		})
	}
}

func outboxFaultAt(t *testing.T, n int, lost bool) (hit bool) {
	ctx := t.Context()
	f := &faults{}
	path := filepath.Join(t.TempDir(), "semel.db")
	s := openFaulty(t, f, Config{Path: path})
	defer s.Close(context.Background())
	o := s.Outbox()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	exec := func(query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	exec("PRAGMA synchronous = OFF")
	exec("INSERT INTO outbox (id, topic, key) VALUES ('a0', 't', 'a'), ('a1', 't', 'a'), ('b0', 't', 'b')")
	where := ""
	f.arm(func(call int, query string, _ []driver.Value) (before, after bool) {
		if call != n {
			return false, false
		}
		hit, where = true, query
		return !lost, lost
	})
	again := func(call func() error) error {
		err := call()
		for range 3 {
			if err != nil {
				err = call()
			}
		}
		return err
	}
	var order []string
	for round := 0; round < 10 && len(order) < 3; round++ {
		var claimed []outbox.Claimed
		if claimed, _, err = o.Exchange(ctx, nil, outbox.Claim{Max: 2, Lease: time.Minute, Suspect: true}); err != nil {
			// A lease of which nobody knows is over in time. Where it is the
			// lock that nobody knows of, the next call finds out.
			_, _ = db.Exec("UPDATE outbox SET due = 1 WHERE leased = 1")
			continue
		}
		var settlements []outbox.Settlement
		for _, m := range claimed {
			order = append(order, m.ID)
			if err := again(func() error { return o.Mark(ctx, m.Ref) }); err != nil {
				t.Errorf("mark: %v", err)
			}
			settlements = append(settlements, outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeDelivered})
		}
		for _, call := range []func() ([]outbox.Ref, error){
			func() ([]outbox.Ref, error) {
				var refs []outbox.Ref
				for _, m := range claimed {
					refs = append(refs, m.Ref)
				}
				return o.Renew(ctx, time.Minute, refs)
			},
			func() ([]outbox.Ref, error) {
				_, lost, err := o.Exchange(ctx, settlements, outbox.Claim{})
				return lost, err
			},
		} {
			var gone []outbox.Ref
			if err := again(func() (err error) { gone, err = call(); return err }); err != nil || len(gone) > 0 {
				t.Errorf("lost %v, %v", gone, err)
			}
		}
	}
	f.arm(nil)
	if i, j := slices.Index(order, "a0"), slices.Index(order, "a1"); len(order) != 3 || i < 0 || j < i {
		t.Errorf("claimed %q", order)
	}
	var left int
	if err := db.QueryRow("SELECT count(*) FROM outbox WHERE state <> 'delivered' OR in_lane = 1 OR leased = 1").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d are not delivered, %v", left, err)
	}
	if t.Failed() {
		t.Fatalf("at call %d, %s", n, where)
	}
	return hit
}
