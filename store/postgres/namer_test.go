package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// Identities whose digests are the same are told apart: the second is refused, in
// words that say why, and nothing becomes of the first.
func TestCollisionIsToldAsSuch(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	stores := map[string]*postgres.Store{"leased": open(t, pool, postgres.Config{})}
	for name, level := range levels {
		c := transactional()
		level(&c)
		stores[name] = open(t, pool, c)
	}
	for name, s := range stores {
		postgres.SameDigest(s)
		first := begin(t, s, name+" first")
		if _, err := first.Complete(t.Context(), result("first")); err != nil {
			t.Fatal(err)
		}
		second := attempt(name + " second")
		if claim, err := s.Begin(t.Context(), second); !errors.Is(err, postgres.ErrCollision) {
			t.Errorf("%s: Begin of an identity with the digest of another: %v, %v; want ErrCollision", name, claim, err)
		}
		second.Takeover = first.Fence()
		if _, err := s.Begin(t.Context(), second); !errors.Is(err, postgres.ErrCollision) {
			t.Errorf("%s: Begin with a takeover: %v; want ErrCollision", name, err)
		}
		if r, err := s.Find(t.Context(), second.Identity); !errors.Is(err, postgres.ErrCollision) {
			t.Errorf("%s: Find: %+v, %v; want ErrCollision", name, r, err)
		}
		for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
			if r, err := s.Resolve(t.Context(), semel.Resolution{Identity: second.Identity, Fence: first.Fence(), Decision: d}); !errors.Is(err, postgres.ErrCollision) {
				t.Errorf("%s: Resolve as %v: %+v, %v; want ErrCollision", name, d, r, err)
			}
		}
		r, err := s.Find(t.Context(), attempt(name+" first").Identity)
		if err != nil || r.ID != first.RecordID() || string(r.Result.Body) != "first" {
			t.Errorf("%s: the first record reads %+v, %v", name, r, err)
		}
		// Once it has expired it is in nobody's way.
		advance(t, pool, "semel", 48*time.Hour)
		if _, err := begin(t, s, name+" second").Complete(t.Context(), result("second")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		advance(t, pool, "semel", 48*time.Hour)
		if n, err := s.Sweep(t.Context(), 10); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
}

// A held record of another identity is not settled for this one.
func TestCollisionSettlesNothing(t *testing.T) {
	s := open(t, connect(t, testenv.Postgres(t), nil), postgres.Config{})
	postgres.SameDigest(s)
	first := begin(t, s, "first")
	if err := first.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []semel.Decision{semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		if r, err := s.Resolve(t.Context(), semel.Resolution{Identity: attempt("second").Identity, Fence: first.Fence(), Decision: d}); !errors.Is(err, postgres.ErrCollision) {
			t.Errorf("Resolve as %v: %+v, %v; want ErrCollision", d, r, err)
		}
	}
	if r, err := s.Find(t.Context(), attempt("first").Identity); err != nil || r.State != semel.StateUnknown || r.Fence != first.Fence() {
		t.Errorf("the first record reads %+v, %v", r, err)
	}
}

// Without the secret no record would be found, and each be executed again.
func TestSecretIsMissed(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{})
	claim := begin(t, s, "k")
	if _, err := claim.Complete(t.Context(), result("done")); err != nil {
		t.Fatal(err)
	}
	other := open(t, pool, postgres.Config{})
	if r, err := other.Find(t.Context(), attempt("k").Identity); err != nil || r.ID != claim.RecordID() {
		t.Fatalf("another handle finds %+v, %v", r, err)
	}
	exec(t, pool, "CREATE TABLE kept AS TABLE semel.version")
	for _, lose := range []string{
		"UPDATE semel.version SET secret = ''", "UPDATE semel.version SET secret = substr(secret, 2)", "DELETE FROM semel.version",
	} {
		exec(t, pool, lose)
		if _, err := postgres.New(t.Context(), pool, postgres.Config{}); !errors.Is(err, postgres.ErrNoSecret) {
			t.Errorf("New after %s: %v; want ErrNoSecret", lose, err)
		}
		if err := postgres.Migrate(t.Context(), pool, "semel"); !errors.Is(err, postgres.ErrNoSecret) {
			t.Errorf("Migrate after %s: %v; want ErrNoSecret", lose, err)
		}
		exec(t, pool, "DELETE FROM semel.version")
		exec(t, pool, "INSERT INTO semel.version TABLE kept")
	}
	again := open(t, pool, postgres.Config{})
	if r, err := again.Find(t.Context(), attempt("k").Identity); err != nil || r.ID != claim.RecordID() {
		t.Errorf("with the secret back the record reads %+v, %v", r, err)
	}
}

// Each schema has a secret of its own, even where one print of Schema made them.
func TestSecretsAreRandom(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	seen := map[string]bool{}
	for range 3 {
		exec(t, pool, "DROP SCHEMA IF EXISTS semel CASCADE")
		exec(t, pool, postgres.Schema("semel"))
		var secret []byte
		if err := pool.QueryRow(t.Context(), "SELECT secret FROM semel.version").Scan(&secret); err != nil || len(secret) != 32 || seen[string(secret)] {
			t.Fatalf("a secret of %d bytes, seen before: %v, %v", len(secret), seen[string(secret)], err)
		}
		seen[string(secret)] = true
	}
}
