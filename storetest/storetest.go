// Package storetest is the contract of semel.Store in executable form. A store
// that passes keeps the rules every guard relies on.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{Name: "mine", New: newHarness})
//	}
//
// It needs the standard library's testing package only.
package storetest

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
)

// Harness is a store that is set up for one rule.
type Harness struct {
	// Store is fresh and empty.
	Store semel.Store
	// Transactional says that a claim lives in a transaction. It has no lease,
	// and no record until it is completed.
	Transactional bool
	// Exclusive says that an open claim blocks all other writes to the store,
	// including those of other identities, and that other handles cannot see
	// whose claim it is.
	Exclusive bool
	// NoPieces says that the store does not support results in pieces and
	// refuses them with ErrTooLarge.
	NoPieces bool
	// Advance moves the store's time forward. Real stores shift their rows into
	// the past. A store with Virtual may leave it nil.
	Advance func(d time.Duration)
	// Open returns another handle on the same records, as another process would
	// have. It is nil if the records cannot be shared.
	Open func() semel.Store
	// Skewed returns a handle on the same records whose caller's clock is wrong
	// by d. It is nil if the handle has no clock of its own.
	Skewed func(d time.Duration) semel.Store
	// Break cuts the store off from its records until mend is called. It is nil
	// if the store cannot be cut off.
	Break func() (mend func())
	// Backup takes a copy of the records and of the store's counters; restore
	// puts it back while the store stays open. Backup is nil if the records
	// cannot be restored.
	Backup func() (restore func())

	// Effect makes a change in the transaction of the claim in ctx, as a
	// handler would. Effects counts the committed changes. Both are nil if
	// claims are not transactions.
	Effect  func(ctx context.Context) error
	Effects func() int
	// LoseCommit makes the next commit of a claim lose its answer: after the
	// commit if taken is true, before it otherwise. It is nil if that is not
	// possible.
	LoseCommit func(taken bool)
}

// Config says how to test a store.
type Config struct {
	// Name is the name of the store in the table of skips.
	Name string
	// New returns a harness. It registers its clean-up with t.
	New func(t testing.TB) Harness
	// Virtual runs each rule in a bubble of package testing/synctest. It is for
	// stores whose clock is time.Now and that do no I/O.
	Virtual bool
	// SkipTable is a file of lines "store: rule"; the rules skipped must be
	// exactly those it lists for Name. Empty means that none may be skipped.
	SkipTable string
}

// Failure reports a rule that a store breaks.
type Failure struct {
	Rule    string
	Message string
}

// Run tests the store against every rule, each as a subtest.
func Run(t *testing.T, c Config) {
	var ran, skipped []string
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			ran = append(ran, r.name)
			if missing := run(t, c, r, nil); missing != "" {
				skipped = append(skipped, r.name)
				t.Logf("not applicable: the harness has no %s", missing)
			}
		})
	}
	compareSkips(t, c, ran, skipped)
}

// compareSkips reports where the rules skipped are not those that the table
// lists. Rules that the test binary's -run flag left out do not count.
func compareSkips(t testing.TB, c Config, ran, skipped []string) {
	t.Helper()
	var want []string
	if c.SkipTable != "" {
		table, err := os.ReadFile(c.SkipTable)
		if err != nil {
			t.Fatalf("table of skips: %v", err)
		}
		for line := range strings.Lines(string(table)) {
			name, rule, ok := strings.Cut(strings.TrimSpace(line), ": ")
			if !ok || name != c.Name {
				continue
			}
			if !slices.Contains(Rules(), rule) {
				t.Errorf("the table %q lists %q for %q, which is no rule", c.SkipTable, rule, name)
			} else if slices.Contains(ran, rule) {
				want = append(want, rule)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(skipped)
	if !slices.Equal(want, skipped) {
		t.Errorf("rules skipped for %q:\n  %q\nthe table %q lists:\n  %q", c.Name, skipped, c.SkipTable, want)
	}
}

// Check tests the store against the named rules, or all rules if none are named,
// and returns those that it breaks. It is for tests of this suite with stores
// that are known to be wrong. It fails t only if the harness does.
func Check(t *testing.T, c Config, only ...string) []Failure {
	var failures []Failure
	for _, r := range rules {
		if len(only) > 0 && !slices.Contains(only, r.name) {
			continue
		}
		rec := &recorder.Recorder{}
		check(t, c, r, rec)
		if rec.Failed() {
			failures = append(failures, Failure{Rule: r.name, Message: rec.Message()})
		}
	}
	return failures
}

func check(t *testing.T, c Config, r rule, rec *recorder.Recorder) {
	if c.Virtual {
		// A bubble whose goroutines wait for each other panics here.
		defer func() {
			if v := recover(); v != nil {
				rec.Errorf("the store hangs: %v", v)
			}
		}()
	}
	run(t, c, r, rec)
}

// Rules returns the names of all rules.
func Rules() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}

type rule struct {
	name string
	// needs names what the rule cannot do without: lease, transaction,
	// overlap, open, skewed, break, backup, lost commit, resolver, sweeper,
	// lister, trail, pieces, eraser.
	needs []string
	test  func(t testing.TB, h Harness, ctx context.Context)
}

// run runs one rule. Failures go to rec, or to t if there is none. It returns
// the name of what the harness lacks for the rule.
func run(t *testing.T, c Config, r rule, rec *recorder.Recorder) (missing string) {
	test := func(t *testing.T) {
		h := c.New(t)
		if missing = lacks(h, r); missing != "" {
			return
		}
		ctx := t.Context()
		if !c.Virtual { // a bubble notices by itself when all of it is stuck
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Minute)
			defer cancel()
		}
		if rec == nil {
			r.test(t, h, ctx)
			return
		}
		rec.Run(t, func(tb testing.TB) { r.test(tb, h, ctx) })
	}
	if c.Virtual {
		synctest.Test(t, test)
	} else {
		test(t)
	}
	return missing
}

func lacks(h Harness, r rule) string {
	_, resolver := h.Store.(semel.Resolver)
	_, sweeper := h.Store.(semel.Sweeper)
	_, lister := h.Store.(semel.Lister)
	_, trail := h.Store.(semel.Trail)
	_, eraser := h.Store.(semel.Eraser)
	has := map[string]bool{
		"open": h.Open != nil, "skewed": h.Skewed != nil, "break": h.Break != nil, "backup": h.Backup != nil,
		"lost commit": h.LoseCommit != nil,
		"transaction": h.Transactional && h.Effect != nil && h.Effects != nil,
		"lease":       !h.Transactional,
		"overlap":     !h.Exclusive,
		"pieces":      !h.NoPieces,
		"resolver":    resolver, "sweeper": sweeper, "lister": lister, "trail": trail, "eraser": eraser,
	}
	for _, need := range r.needs {
		if !has[need] {
			return need
		}
	}
	return ""
}
