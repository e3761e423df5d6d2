package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// The trail of records and entries is the trail of a store that writes every
// entry down: the one in memory, which is led through the same life. Two handles
// write to the file by turns, one call or a group of calls at a time, and readers
// follow with pages of their own while sweeps move entries about.
func TestTrailIsThatOfTheModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).live(250) })
		})
	}
}

type model struct {
	t      *testing.T
	rand   *rand.Rand
	memory *memory.Store
	files  [2]*Store
	keep   time.Duration // of the trail; negative for ever

	claims map[semel.Identity]*claims
	ids    map[string]string // of records: in memory to in the file

	followers []*follower
}

// claims are the latest ones of an identity in both stores.
type claims struct{ memory, file semel.Claim }

// by reports whether the claim would go through that handle.
func (c *claims) by(s *Store) bool { return c == nil || c.file.(*claim).store == s }

// follower reads the trail page by page.
type follower struct {
	page  int
	after uint64
	seen  []semel.TrailEntry
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), keep: -1,
		claims: map[semel.Identity]*claims{}, ids: map[string]string{},
	}
	if seed%3 == 2 {
		m.keep = seconds(60)
	}
	var err error
	if m.memory, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "semel.db")
	for i := range m.files {
		m.files[i] = openFaulty(t, &faults{}, Config{Path: path, TrailRetention: m.keep})
	}
	for _, page := range []int{1, 2, 1000} {
		m.followers = append(m.followers, &follower{page: page})
	}
	return m
}

func (m *model) live(steps int) {
	for range steps {
		m.align()
		switch n := m.rand.IntN(12); {
		case n == 0:
			time.Sleep(time.Duration(m.rand.IntN(20)) * time.Second)
		case n == 1:
			m.sweep()
		case n <= 4:
			m.together(m.rand.IntN(6) + 2)
		default:
			id := m.identity()
			m.compare(id, m.step(id)(m.files[m.rand.IntN(2)]))
		}
		if m.rand.IntN(3) == 0 {
			for _, f := range m.followers {
				m.follow(f)
			}
		}
		if m.t.Failed() {
			return
		}
	}
	m.check()
}

// align waits for the next whole second. The writer may pause for a few
// milliseconds, so times are compared in seconds, and end between two.
func (m *model) align() {
	now := time.Now()
	time.Sleep(now.Truncate(time.Second).Add(time.Second).Sub(now))
}

func (m *model) identity() semel.Identity {
	return semel.Identity{
		Scope: semel.Scope{Tenant: fmt.Sprint("t", m.rand.IntN(2)), Actor: "a", Operation: "op"},
		Key:   fmt.Sprint("the same end ", m.rand.IntN(5)),
	}
}

// outcome is what both stores made of a step, and the claims that came of it.
type outcome struct {
	what          string
	memory, file  error
	inMem, inFile semel.Claim
}

// seconds and a half.
func seconds(n int) time.Duration { return time.Duration(n)*time.Second + time.Second/2 }

// step leads the memory through one call, and returns that for a file.
func (m *model) step(id semel.Identity) func(*Store) outcome {
	ctx, r := context.Background(), m.rand
	c := m.claims[id]
	both := func(what string, inMemory error, inFile func(*Store) error) func(*Store) outcome {
		return func(s *Store) outcome { return outcome{what: what, memory: inMemory, file: inFile(s)} }
	}
	n := r.IntN(10)
	if c == nil || n <= 2 {
		a := semel.NewAttempt(id, semel.Fingerprint{}, seconds(r.IntN(20)+1), seconds(r.IntN(30)))
		for _, s := range []*string{&a.Origin.RequestID, &a.Origin.EventID, &a.Origin.TraceID} {
			if r.IntN(2) == 0 {
				*s = fmt.Sprint("origin ", r.IntN(4))
			}
		}
		if rec, err := m.memory.Find(ctx, id); err == nil && r.IntN(2) == 0 {
			a.Takeover = rec.Fence
		}
		inMem, err := m.memory.Begin(ctx, a)
		return func(s *Store) outcome {
			inFile, inFileErr := s.Begin(ctx, a)
			return outcome{"Begin", err, inFileErr, inMem, inFile}
		}
	}
	label := fmt.Sprint("label ", r.IntN(100))
	switch n {
	case 3, 4, 5:
		_, err := c.memory.Complete(ctx, semel.Result{Label: label})
		return both("Complete", err, func(*Store) error { _, err := c.file.Complete(ctx, semel.Result{Label: label}); return err })
	case 6:
		return both("Hold", c.memory.Hold(ctx, label), func(*Store) error { return c.file.Hold(ctx, label) })
	case 7:
		return both("Release", c.memory.Release(ctx), func(*Store) error { return c.file.Release(ctx) })
	}
	d := semel.Resolution{
		Identity: id, Fence: c.memory.Fence(), Decision: semel.Decision(r.IntN(4) + 1), Cause: label,
		Result: semel.Result{Label: "looked up"}, Origin: semel.Origin{RequestID: "operator"},
	}
	_, err := m.memory.Resolve(ctx, d)
	return both("Resolve as "+d.Decision.String(), err, func(s *Store) error { _, err := s.Resolve(ctx, d); return err })
}

// together has n calls, each of another identity, committed as one group.
func (m *model) together(n int) {
	s := m.files[m.rand.IntN(2)]
	release := block(m.t, s)
	type answer struct {
		id semel.Identity
		outcome
	}
	answers := make(chan answer, n)
	used := map[semel.Identity]bool{}
	for ; n > 0; n-- {
		id := m.identity()
		if used[id] || !m.claims[id].by(s) {
			continue
		}
		used[id] = true
		call := m.step(id)
		go func() { answers <- answer{id, call(s)} }()
		synctest.Wait() // in the queue, behind the one before
	}
	release()
	for range used {
		a := <-answers
		m.compare(a.id, a.outcome)
	}
}

func (m *model) compare(id semel.Identity, o outcome) {
	m.t.Helper()
	class := func(err error) string {
		for _, known := range []error{semel.ErrLostClaim, semel.ErrStaleFence, semel.ErrNotFound} {
			if errors.Is(err, known) {
				return known.Error()
			}
		}
		if isConflict(err) {
			return "conflict"
		}
		return fmt.Sprint(err)
	}
	if class(o.memory) != class(o.file) {
		m.t.Fatalf("%s of %s: %v in memory, %v in the file", o.what, id.Key, o.memory, o.file)
	}
	if o.inMem == nil {
		return
	}
	if o.inMem.Fence() != o.inFile.Fence() {
		m.t.Fatalf("%s of %s: fence %d in memory, %d in the file", o.what, id.Key, o.inMem.Fence(), o.inFile.Fence())
	}
	m.claims[id] = &claims{o.inMem, o.inFile}
	if other, ok := m.ids[o.inMem.RecordID()]; ok && other != o.inFile.RecordID() {
		m.t.Fatalf("a record has two ids: %s, %s", other, o.inFile.RecordID())
	}
	m.ids[o.inMem.RecordID()] = o.inFile.RecordID()
}

func (m *model) sweep() {
	limit := []int{1, 3, 1000}[m.rand.IntN(3)]
	inMemory, _ := m.memory.Sweep(m.t.Context(), limit)
	inFile, err := m.files[m.rand.IntN(2)].Sweep(m.t.Context(), limit)
	if err != nil || limit == 1000 && m.keep < 0 && inFile < inMemory { // memory also makes room by itself
		m.t.Fatalf("Sweep removed %d in memory and %d in the file, %v", inMemory, inFile, err)
	}
}

func (m *model) follow(f *follower) {
	for {
		page, err := m.files[m.rand.IntN(2)].Trail(m.t.Context(), semel.TrailFilter{After: f.after, Limit: f.page})
		if err != nil {
			m.t.Fatal(err)
		}
		f.seen = append(f.seen, page...)
		if len(page) < f.page {
			if len(page) > 0 {
				f.after = page[len(page)-1].Position
			}
			return
		}
		f.after = page[len(page)-1].Position
	}
}

// tell is what entries of both stores have alike.
func (m *model) tell(entries []semel.TrailEntry, inMemory bool) (told []string) {
	for _, e := range entries {
		if inMemory {
			e.RecordID = m.ids[e.RecordID]
		}
		e.Instance, e.Seq, e.Position, e.At = "", 0, 0, e.At.Truncate(time.Second)
		told = append(told, fmt.Sprintf("%+v", e))
	}
	return told
}

func (m *model) check() {
	t, ctx := m.t, m.t.Context()
	all := func(s semel.Trail, f semel.TrailFilter, page int) (out []semel.TrailEntry) {
		f.Limit = page
		for {
			entries, err := s.Trail(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, entries...)
			if len(entries) < page {
				return out
			}
			f.After = entries[len(entries)-1].Position
		}
	}
	equal := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("%s: %d entries; want %d. From entry %d on:\n%s\nwant\n%s", what, len(got), len(want), i,
				strings.Join(got[i:min(i+3, len(got))], "\n"), strings.Join(want[i:min(i+3, len(want))], "\n"))
		}
	}
	inMemory := all(m.memory, semel.TrailFilter{}, 1000)
	for _, f := range m.followers {
		m.follow(f)
		if m.keep < 0 { // else a reader that pauses misses what is swept meanwhile
			equal(fmt.Sprintf("what a follower with pages of %d saw", f.page), m.tell(f.seen, false), m.tell(inMemory, true))
		}
	}
	compare := func(when string) {
		t.Helper()
		m.align()
		if m.keep >= 0 { // what is over and not yet swept may be shown
			m.sweepAll()
			cut := time.Now().Add(-m.keep)
			inMemory = slices.DeleteFunc(inMemory, func(e semel.TrailEntry) bool { return e.At.Before(cut) })
		}
		want := m.tell(inMemory, true)
		whole := all(m.files[0], semel.TrailFilter{}, 1000)
		equal(when, m.tell(whole, false), want)
		seqs, positions := map[string]uint64{}, uint64(0)
		for _, e := range whole {
			if e.Position <= positions {
				t.Fatalf("position %d comes behind %d", e.Position, positions)
			}
			positions = e.Position
			if last := seqs[e.Instance]; e.Seq != last+1 && (last != 0 || m.keep < 0) {
				t.Fatalf("%s: entry %d of %s follows %d", when, e.Seq, e.Instance, last)
			}
			seqs[e.Instance] = e.Seq
		}
		for i := range 9 {
			r := m.rand
			var f semel.TrailFilter
			if len(inMemory) == 0 {
				break
			}
			like := inMemory[r.IntN(len(inMemory))]
			for bit, set := range []func(){
				func() { f.Key = like.Key }, func() { f.RecordID = like.RecordID }, func() { f.RequestID = like.RequestID },
				func() { f.EventID = like.EventID }, func() { f.TraceID = like.TraceID }, func() { f.Tenant = like.Tenant },
				func() { f.Kind = like.Kind }, func() { f.Since = like.At.Truncate(time.Second) }, func() { f.Until = like.At.Truncate(time.Second) },
			} {
				if bit == i%9 || r.IntN(6) == 0 {
					set()
				}
			}
			// From memory without positions, which it counts otherwise after a cut.
			var want []semel.TrailEntry
			for _, e := range all(m.memory, f, 1000) {
				if m.keep < 0 || !e.At.Before(time.Now().Add(-m.keep)) {
					want = append(want, e)
				}
			}
			g := f
			if g.RecordID != "" {
				g.RecordID = m.ids[g.RecordID]
			}
			page := []int{1, 2, 1000}[r.IntN(3)]
			equal(fmt.Sprintf("%s: %+v in pages of %d", when, g, page), m.tell(all(m.files[1], g, page), false), m.tell(want, true))
		}
	}
	for range 3 {
		compare("the trail")
		time.Sleep(15 * time.Second)
		m.sweepAll()
		compare("the trail after a sweep")
	}
	time.Sleep(time.Hour)
	m.sweepAll()
	compare("the trail when every completed record is swept")
	var records, runs int64
	if err := m.files[0].read(ctx, func(c *conn) error {
		return c.queryOnce(ctx, "SELECT (SELECT count(*) FROM record WHERE state = 2), (SELECT count(*) FROM executed)",
			func(r *row) { records, runs = r.int(), r.int() })
	}); err != nil || records != 0 || runs != 0 {
		t.Fatalf("%d completed records and %d rows of executed are left, %v", records, runs, err)
	}
}

func (m *model) sweepAll() {
	if _, err := m.files[0].Sweep(m.t.Context(), 100_000); err != nil {
		m.t.Fatal(err)
	}
}
