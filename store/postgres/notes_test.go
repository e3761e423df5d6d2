package postgres_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

func TestNotesBeyondTheLimitAreCounted(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{MaxNotes: 3})
	for i := range 10 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint(i)})
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := open(t, pool, postgres.Config{}).Trail(t.Context(), semel.TrailFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var seq, lost uint64
	for _, e := range entries {
		seq += 1 + e.Count
		lost += e.Count
		if e.Seq != seq && e.Kind != semel.TrailLost {
			t.Fatalf("entry %+v; want seq %d", e, seq)
		}
	}
	if lost == 0 || int(lost)+len(entries) < 10 {
		t.Fatalf("%d entries, %d lost; 10 were noted", len(entries), lost)
	}
}
