package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

// A key that is used again whenever its record has expired leaves nothing behind,
// even where nobody sweeps.
func TestReplacedRecordsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		id := semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: "k"}
		for range 100 {
			c, err := s.Begin(t.Context(), semel.NewAttempt(id, semel.Fingerprint{}, time.Minute, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		if len(s.records) != 1 || len(s.expiry) != 1 {
			t.Errorf("%d records, %d of them to expire; want one", len(s.records), len(s.expiry))
		}
	})
}
