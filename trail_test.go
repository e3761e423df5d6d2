package semel_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// A client that repeats a request in a loop must not fill the trail.
func TestRepeatedAnswersShareAnEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		var e effects
		entries := func(kind semel.TrailKind) (counts []uint64) {
			t.Helper()
			found, err := s.Trail(t.Context(), semel.TrailFilter{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range found {
				counts = append(counts, entry.Count)
			}
			return counts
		}
		want := func(kind semel.TrailKind, counts ...uint64) {
			t.Helper()
			if got := entries(kind); fmt.Sprint(got) != fmt.Sprint(counts) {
				t.Fatalf("entries of %s count %v; want %v", kind, got, counts)
			}
		}
		other := submit("k")
		other.Fingerprint = semel.FingerprintOf([]byte("another"))
		for range 1001 { // one executes
			_, _ = g.Do(t.Context(), submit("k"), e.do)
		}
		_, _ = g.Do(t.Context(), other, e.do)
		want(semel.TrailReplayed, 0)
		want(semel.TrailMismatch, 0)
		time.Sleep(10*time.Second + time.Millisecond)
		want(semel.TrailReplayed, 0, 999)
		want(semel.TrailMismatch, 0)
		last := submit("k")
		last.Origin.RequestID = "last"
		_, _ = g.Do(t.Context(), last, e.do)
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(semel.TrailReplayed, 0, 999, 0)
		if found, _ := s.Trail(t.Context(), semel.TrailFilter{RequestID: "last"}); len(found) != 1 {
			t.Fatalf("%d entries name the last request", len(found))
		}
	})
}

func TestTrailTellsReplaysAndRefusals(t *testing.T) {
	s := newStore(t)
	g := newGuard(t, s, semel.Policy{})
	var e effects
	first := submit("k")
	first.Origin = semel.Origin{RequestID: "r1"}
	other := submit("k")
	other.Fingerprint = semel.FingerprintOf([]byte("another"))
	other.Origin = semel.Origin{RequestID: "r3", EventID: "e3", TraceID: "x3"}
	_, _ = g.Do(t.Context(), first, e.do)
	_, _ = g.Do(t.Context(), submit("k"), e.do)
	_, _ = g.Do(t.Context(), other, e.do)
	entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "k"})
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, want := range []semel.TrailKind{semel.TrailExecuted, semel.TrailReplayed, semel.TrailMismatch} {
		if entries[i].Kind != want || entries[i].RecordID != entries[0].RecordID {
			t.Errorf("entry %d reads %+v; want %s", i, entries[i], want)
		}
	}
	if entries[0].RequestID != "r1" || entries[2].Origin != other.Origin {
		t.Errorf("origins %+v and %+v", entries[0].Origin, entries[2].Origin)
	}
}
