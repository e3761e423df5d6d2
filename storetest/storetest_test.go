package storetest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/store/memory"
)

// judged runs f with a recorder and returns the first failure it reported.
func judged(t *testing.T, f func(t testing.TB)) string {
	var rec recorder.Recorder
	rec.Run(t, f)
	return rec.Message()
}

func TestSkipsAreComparedWithTheTable(t *testing.T) {
	all := Rules()
	table := filepath.Join(t.TempDir(), "skips.txt")
	text := "What cannot be tested: read this.\n\nmine: outage-fails-closed\nother: scope-separates\nsloppy: no-such-rule\n"
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		store, table string
		ran, skipped []string
		want         string // in the failure; empty for none
	}{
		{"as listed", "mine", table, all, []string{"outage-fails-closed"}, ""},
		{"nothing listed, nothing skipped", "third", table, all, nil, ""},
		{"no table, nothing skipped", "mine", "", all, nil, ""},
		{"skipped beyond the table", "mine", table, all, []string{"outage-fails-closed", "scope-separates"}, "scope-separates"},
		{"skipped what another store may", "mine", table, all, []string{"scope-separates"}, "scope-separates"},
		{"listed, but passed", "mine", table, all, nil, "outage-fails-closed"},
		{"skipped without a table", "mine", "", all, []string{"outage-fails-closed"}, "outage-fails-closed"},
		{"listed, but left out by -run", "mine", table, []string{"scope-separates"}, nil, ""},
		{"listed, but no rule", "sloppy", table, all, nil, "no-such-rule"},
		{"no such table", "mine", table + ".gone", all, nil, "table of skips"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judged(t, func(t testing.TB) {
				compareSkips(t, Config{Name: c.store, SkipTable: c.table}, c.ran, slices.Clone(c.skipped))
			})
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("compareSkips reported %q; want %q in it", got, c.want)
			}
		})
	}
}

// A store with none of the optional interfaces, and a harness without hooks,
// skip the rules that need them and pass the others.
func TestRunSkipsWhatTheHarnessLacks(t *testing.T) {
	var lacking []string
	for _, r := range rules {
		// A bare harness has leases, keeps pieces, and has room for several claims at once.
		if slices.ContainsFunc(r.needs, func(need string) bool { return need != "lease" && need != "overlap" && need != "pieces" }) {
			lacking = append(lacking, "bare: "+r.name)
		}
	}
	table := filepath.Join(t.TempDir(), "skips.txt")
	if err := os.WriteFile(table, []byte(strings.Join(lacking, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	Run(t, Config{Name: "bare", Virtual: true, SkipTable: table, New: func(t testing.TB) Harness {
		return Harness{Store: struct{ semel.Store }{newMemory(t)}}
	}})
}

func newMemory(t testing.TB) *memory.Store {
	s, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// badFind is a store whose Find does not return as it should.
type badFind struct {
	*memory.Store
	find func()
}

func (s badFind) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	s.find()
	return s.Store.Find(ctx, id)
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		find func()
		want string // in the message of a failure; empty for no failures
	}{
		{"right", func() {}, ""},
		{"hanging", func() { select {} }, "hangs"},
		{"panicking", func() { panic("out of order") }, "panic: out of order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := make(map[string]string)
			for _, f := range Check(t, Config{Virtual: true, New: func(t testing.TB) Harness {
				return Harness{Store: badFind{newMemory(t), c.find}}
			}}) {
				broken[f.Rule] = f.Message
			}
			if c.want == "" {
				if len(broken) > 0 {
					t.Fatalf("a store that is right breaks %q", broken)
				}
				return
			}
			if got := broken["absent-is-not-found"]; !strings.Contains(got, c.want) {
				t.Errorf("absent-is-not-found reports %q; want %q in it", got, c.want)
			}
			if got, ok := broken["one-claim-of-many"]; ok {
				t.Errorf("one-claim-of-many calls no Find and reports %q", got)
			}
		})
	}
}
