package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// clumsy is a namer whose digests collide.
type clumsy struct{ namer }

func (c clumsy) Digest(semel.Identity) (d [16]byte) { return d }

// elsewhere is identity in another tenant.
func elsewhere(key string) semel.Identity {
	id := identity(key)
	id.Tenant = "acne"
	return id
}

// Two identities with one digest: the second is refused everywhere, as what it
// is, and neither is told as the other. Not even the expired make room.
func TestDigestsThatCollide(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	s.names = clumsy{s.names}
	first := mustBegin(t, s, attempt("a"))
	second := attempt("a")
	second.Identity = elsewhere("a")
	check := func() {
		t.Helper()
		if _, err := s.Begin(t.Context(), second); !errors.Is(err, errCollision) {
			t.Errorf("Begin: %v; want errCollision", err)
		}
		s.known.add(s.digest(elsewhere("a"))) // so that it looks first
		if _, err := s.Begin(t.Context(), second); !errors.Is(err, errCollision) {
			t.Errorf("Begin, which looks first: %v; want errCollision", err)
		}
		if _, err := s.Find(t.Context(), elsewhere("a")); !errors.Is(err, errCollision) {
			t.Errorf("Find: %v; want errCollision", err)
		}
		if _, err := s.Resolve(t.Context(), semel.Resolution{Identity: elsewhere("a"), Fence: first.Fence(), Decision: semel.DecideUnknown}); !errors.Is(err, errCollision) {
			t.Errorf("Resolve: %v; want errCollision", err)
		}
		f := semel.Filter{Tenant: "acne", Actor: "user-17", Operation: "payments.create", Key: "a"}
		if records, err := s.List(t.Context(), f); err != nil || len(records) != 0 {
			t.Errorf("List found %+v, %v", records, err)
		}
	}
	check()
	if _, err := first.Complete(t.Context(), semel.Result{Body: []byte("of a1")}); err != nil {
		t.Fatal(err)
	}
	check()
	pass(t, s, 2*time.Hour)
	check()
	if _, err := s.Find(t.Context(), identity("a")); !errors.Is(err, semel.ErrNotFound) {
		t.Errorf("the expired record: %v", err)
	}
	mustBegin(t, s, attempt("b")) // others are not concerned
}

// A file whose secret is gone or cut would find none of its records, and let
// everything be executed again. It is not opened.
func TestDamagedSecret(t *testing.T) {
	for _, damage := range []string{
		"UPDATE counter SET secret = x''", "UPDATE counter SET secret = substr(secret, 2)", "DELETE FROM counter",
	} {
		path := filepath.Join(t.TempDir(), "semel.db")
		s := openFaulty(t, &faults{}, Config{Path: path})
		if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) { return t.exec(damage) }); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t.Context(), Config{Path: path}, connect); err == nil || !strings.Contains(err.Error(), "secret") {
			t.Errorf("Open after %s: %v", damage, err)
		}
	}
}

// The secret is the file's: every handle has the same ids, other files others,
// and no id tells the number behind it.
func TestIDsBelongToTheFile(t *testing.T) {
	f := &faults{}
	random := false
	f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
		random = random || strings.HasPrefix(query, "UPDATE counter SET secret")
		return false, false
	})
	s := openFaulty(t, f, Config{})
	if !random {
		t.Error("the secret of a new file is not this program's")
	}
	again, other := openFaulty(t, f, Config{Path: s.config.Path}), openFaulty(t, f, Config{})
	id := mustBegin(t, s, attempt("k")).RecordID()
	if r, err := again.Find(t.Context(), identity("k")); err != nil || r.ID != id {
		t.Errorf("another handle names the record %q, %v; want %q", r.ID, err, id)
	}
	if got := mustBegin(t, other, attempt("k")).RecordID(); got == id {
		t.Errorf("two files name their first records %q", id)
	}
	for _, id := range []string{"nobody's", "1", strings.ToUpper(id), id[1:] + "a"} {
		if got, err := s.List(t.Context(), semel.Filter{ID: id}); err != nil || len(got) != 0 {
			t.Errorf("List of %q found %+v, %v", id, got, err)
		}
	}
	// By hand the schema has a secret of its own too.
	byHand, err := connect(t.Context(), mustLocate(t), "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer byHand.close()
	if err := byHand.script(Schema()); err != nil {
		t.Fatal(err)
	}
	if _, err := byHand.names(); err != nil {
		t.Error(err)
	}
}

func mustLocate(t *testing.T) string {
	t.Helper()
	path, err := locate(filepath.Join(t.TempDir(), "semel.db"), false)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A record keeps its number, and with it its id, through takeovers; listings
// are in the order of fences all the same, whatever the page.
func TestListingsFollowFences(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	ids := map[string]string{}
	keys := []string{"a", "b", "c", "d", "e", "f"}
	fences := map[string]uint64{}
	for _, key := range keys {
		c := mustBegin(t, s, attempt(key))
		ids[key], fences[key] = c.RecordID(), c.Fence()
	}
	pass(t, s, 2*time.Minute)
	for _, key := range []string{"d", "a", "d"} { // begun again, and lapsed again
		a := attempt(key)
		a.Takeover = fences[key]
		c := mustBegin(t, s, a)
		if c.RecordID() != ids[key] {
			t.Errorf("a takeover of %s made record %s of %s", key, c.RecordID(), ids[key])
		}
		fences[key] = c.Fence()
		pass(t, s, 2*time.Minute)
	}
	for _, f := range []semel.Filter{{}, {State: semel.StateInProgress}, {Lapsed: true}, {Tenant: "acme"}} {
		for limit := 1; limit <= len(keys); limit++ {
			var got string
			f.After, f.Limit = 0, limit
			for {
				page, err := s.List(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				for _, r := range page {
					got += r.Identity.Key
					f.After = r.Fence
				}
			}
			if got != "bcefad" {
				t.Errorf("List %+v in pages of %d reads %q", f, limit, got)
			}
		}
	}
	if page, err := s.List(t.Context(), semel.Filter{Key: "d"}); err != nil || len(page) != 1 || page[0].Fence != fences["d"] {
		t.Errorf("List by a key that was taken over: %+v, %v", page, err)
	}
	if page, err := s.List(t.Context(), semel.Filter{Key: "d", After: fences["d"]}); err != nil || len(page) != 0 {
		t.Errorf("List behind a key's fence: %+v, %v", page, err)
	}
}
