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

// Harness is a store set up for one rule.
type Harness struct {
	// Store is fresh and empty.
	Store semel.Store
	// Transactional says that a claim lives in a transaction: it has no lease,
	// and no record until it is completed.
	Transactional bool
	// Exclusive says that an open claim keeps all other writes out of the
	// store, those of other identities too, and that other handles do not
	// see whose claim it is.
	Exclusive bool
	// NoPieces says that the store keeps no results in pieces: it refuses them
	// with ErrTooLarge.
	NoPieces bool
	// Advance moves the store's time forward. Real stores shift their rows
	// into the past; a Virtual one may leave it nil.
	Advance func(d time.Duration)
	// Open returns another handle on the same records, as another process
	// would have. Nil if the records cannot be shared.
	Open func() semel.Store
	// Skewed returns a handle on the same records whose caller's clock is
	// wrong by d. Nil if the handle has no clock of its own to be wrong.
	Skewed func(d time.Duration) semel.Store
	// Break cuts the store off from its records until the returned function
	// is called. Nil if it cannot be cut off.
	Break func() (mend func())
	// Backup takes a copy of the records and of the store's counters;
	// restore puts it back while the store stays open. Nil if nothing can
	// restore the records.
	Backup func() (restore func())

	// Effect does something in the transaction of the claim that ctx comes
	// from, as a handler would; Effects counts what was committed of that.
	// Nil where claims are no transactions.
	Effect  func(ctx context.Context) error
	Effects func() int
	// LoseCommit has the next commit of a claim lose its answer, after the
	// store's records have taken it or, with taken false, before. Nil if that
	// cannot be brought about.
	LoseCommit func(taken bool)
}

// Config says how to test a store.
type Config struct {
	// Name is the store's, in the table of skips.
	Name string
	// New returns a harness; it registers its clean-up with t.
	New func(t testing.TB) Harness
	// Virtual runs each rule in a bubble of package testing/synctest: for
	// stores whose clock is time.Now and that do no I/O.
	Virtual bool
	// SkipTable is a file of lines "store: rule"; the rules skipped must be
	// exactly those it lists for Name. Empty means that none may be skipped.
	SkipTable string
}

// Failure is a rule that a store breaks.
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

// Check tests the store against the rules named, or every rule, and returns those
// it breaks: for tests of this suite against stores known to be wrong. It fails t
// only where the harness does.
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
