package sqlite

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"

	"github.com/semelhq/semel/internal/quick"
)

// Notes never block. What does not fit is counted in its place.
func TestLostNotesAreCounted(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{MaxNotes: 10})
	release := block(t, s)
	for i := range 25 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint(i)})
	}
	release()
	entries := awaitTrail(t, s, 11)
	for i := range 3 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint("more ", i)})
	}
	entries = append(entries, awaitTrail(t, s, 14)[11:]...)
	seq := uint64(0)
	var read []string
	for _, e := range entries {
		seq++
		if e.Kind == semel.TrailLost {
			seq += e.Count
		}
		if e.Seq != seq {
			t.Errorf("entry %+v has number %d; want %d", e, e.Seq, seq)
		}
		read = append(read, fmt.Sprint(e.Kind, e.Key, e.Count))
	}
	want := []string{"lost15", "replayedmore 00", "replayedmore 10", "replayedmore 20"}
	if !slices.Equal(read[10:], want) {
		t.Errorf("behind the first ten entries the trail reads %q; want %q", read[10:], want)
	}
}

func awaitTrail(t *testing.T, s *Store, n int) []semel.TrailEntry {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) >= n {
			return entries
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("the trail holds %d entries; want %d", len(entries), n)
		}
	}
}

// Notes that cannot be written wait, do not fail others, and are written later.
func TestNotesOutlastAFailure(t *testing.T) {
	quick.LeaveOut(t)
	f := &faults{}
	s := openFaulty(t, f, Config{})
	c, err := s.Begin(t.Context(), attempt("k"))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan none, 100)
	f.arm(func(_ int, query string, args []driver.Value) (before, after bool) {
		if strings.Contains(query, "INTO trail") && slices.Contains(args, driver.Value("poison")) {
			failed <- none{}
			return true, false
		}
		return false, false
	})
	for i := range 3 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "poison", Label: fmt.Sprint(i)})
	}
	<-failed
	if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
		t.Errorf("Complete beside notes that cannot be written: %v", err)
	}
	f.arm(nil)
	entries := awaitTrail(t, s, 4)
	for i, e := range entries {
		if e.Seq != uint64(i+1) {
			t.Errorf("entry %d has number %d", i+1, e.Seq)
		}
	}
}
