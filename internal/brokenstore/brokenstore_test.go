package brokenstore_test

import (
	"slices"
	"testing"

	"github.com/semelhq/semel/internal/brokenstore"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/storetest"
)

// The stores that the broken ones are made of keep every rule, skipping only
// those of the other mode: what the broken ones break is their defect.
func TestCorrect(t *testing.T) {
	for name, harness := range map[string]func() storetest.Harness{
		"correct": brokenstore.Correct, "correct-transactional": brokenstore.CorrectTransactional,
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Config{
				Name: name, Virtual: true, SkipTable: "../../storetest/skips.txt",
				New: func(testing.TB) storetest.Harness { return harness() },
			})
		})
	}
}

func TestBrokenStores(t *testing.T) {
	for _, b := range brokenstore.Stores() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			t.Log(b.What)
			var broken []string
			for _, f := range storetest.Check(t, storetest.Config{
				Name: b.Name, Virtual: true,
				New: func(testing.TB) storetest.Harness { return b.Harness() },
			}, b.Breaks...) {
				broken = append(broken, f.Rule)
				t.Logf("breaks %s: %s", f.Rule, f.Message)
			}
			for _, rule := range b.Breaks {
				if !slices.Contains(broken, rule) {
					t.Errorf("%s passes %s", b.Name, rule)
				}
			}
		})
	}
}

// A rule that no store can break proves nothing.
func TestEveryRuleCanBeBroken(t *testing.T) {
	breakers := make(map[string][]string)
	names := make(map[string]bool)
	for _, b := range brokenstore.Stores() {
		if names[b.Name] || b.What == "" || len(b.Breaks) == 0 {
			t.Errorf("broken store %q: its name is taken, or it does not say what is wrong or which rule it breaks", b.Name)
		}
		names[b.Name] = true
		for _, rule := range b.Breaks {
			if !slices.Contains(storetest.Rules(), rule) {
				t.Errorf("broken store %q is to break %q, which is no rule", b.Name, rule)
			}
			breakers[rule] = append(breakers[rule], b.Name)
		}
	}
	for _, rule := range storetest.Rules() {
		if len(breakers[rule]) == 0 {
			t.Errorf("no broken store is named to break %s", rule)
		}
	}
}

func TestCorrectOutbox(t *testing.T) {
	outboxtest.Run(t, outboxtest.Config{Virtual: true, New: func(*testing.T) outboxtest.Harness { return brokenstore.CorrectOutbox() }})
}

// Every broken outbox is caught by the rules that are named for it, and every rule
// of outboxtest catches one.
func TestBrokenOutboxes(t *testing.T) {
	caught := map[string]bool{}
	names := map[string]bool{}
	for _, b := range brokenstore.Outboxes() {
		if names[b.Name] || b.What == "" || len(b.Breaks) == 0 {
			t.Errorf("broken outbox %q: its name is taken, or it does not say what is wrong or which rule it breaks", b.Name)
		}
		names[b.Name] = true
		for _, rule := range b.Breaks {
			caught[rule] = true
		}
		t.Run(b.Name, func(t *testing.T) {
			t.Log(b.What)
			broken := outboxtest.Check(t, outboxtest.Config{Virtual: true, New: func(*testing.T) outboxtest.Harness { return b.Harness() }}, b.Breaks...)
			for rule, message := range broken {
				t.Logf("breaks %s: %s", rule, message)
			}
			for _, rule := range b.Breaks {
				if broken[rule] == "" {
					t.Errorf("%s passes %s", b.Name, rule)
				}
			}
		})
	}
	for _, rule := range outboxtest.Rules() {
		if !caught[rule] {
			t.Errorf("no broken outbox is named to break %s", rule)
		}
	}
}
