package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// A record that was erased expires as it would have, and none in its place.
func TestErasedExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		identity := func(key string) semel.Identity {
			return semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: key}
		}
		begin := func(key string, retention time.Duration) semel.Claim {
			t.Helper()
			c, err := s.Begin(ctx, semel.NewAttempt(identity(key), semel.Fingerprint{}, time.Minute, retention))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		complete := func(key string, retention time.Duration) uint64 {
			t.Helper()
			c := begin(key, retention)
			if _, err := c.Complete(ctx, semel.Result{Body: []byte("answer")}); err != nil {
				t.Fatal(err)
			}
			return c.Fence()
		}
		fence := complete("erased", 2*time.Hour)
		if erased, err := s.Erase(ctx, semel.Erasure{Identity: identity("erased"), Fence: fence}); !erased || err != nil {
			t.Fatalf("Erase: %v, %v", erased, err)
		}
		complete("sooner", time.Hour) // which moves it to another place
		time.Sleep(3 * time.Hour)
		begin("erased", time.Hour)
		if n, err := s.Sweep(ctx, 10); n != 1 || err != nil {
			t.Errorf("Sweep removed %d, %v; want the other that has expired", n, err)
		}
		if r, err := s.Find(ctx, identity("erased")); err != nil || r.State != semel.StateInProgress {
			t.Errorf("Find what was begun anew: %v, %v", r.State, err)
		}
	})
}
