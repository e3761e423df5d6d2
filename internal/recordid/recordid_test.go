package recordid_test

import (
	"math"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recordid"
)

func namer(t testing.TB, secret []byte) *recordid.Namer {
	t.Helper()
	n, err := recordid.New(secret)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestIDs(t *testing.T) {
	secret := recordid.NewSecret()
	n, again, other := namer(t, secret), namer(t, secret), namer(t, recordid.NewSecret())
	seen := make(map[string]bool)
	for _, number := range []uint64{0, 1, 2, 3, 1 << 32, math.MaxInt64, math.MaxUint64} {
		id := n.ID(number)
		if len(id) != len(semel.NewRecordID()) || strings.ToLower(id) != id || seen[id] {
			t.Errorf("the id of %d is %q", number, id)
		}
		seen[id] = true
		if got, ok := again.Number(id); !ok || got != number {
			t.Errorf("Number(ID(%d)) = %d, %v", number, got, ok)
		}
		if _, ok := other.Number(id); ok {
			t.Errorf("another store takes the id of %d for its own", number)
		}
		for i := range len(id) {
			for _, c := range "a7A-\xff" {
				forged := id[:i] + string(c) + id[i+1:]
				if _, ok := n.Number(forged); ok && forged != id {
					t.Errorf("%q, made from %q, is taken for an id", forged, id)
				}
			}
		}
		// The bits that the last letter has too many.
		for _, c := range "abcdefghijklmnopqrstuvwxyz234567" {
			forged := id[:25] + string(c)
			if _, ok := n.Number(forged); ok && forged != id {
				t.Errorf("%q is taken for %q", forged, id)
			}
		}
	}
	for _, no := range []string{"", "a", strings.Repeat("a", 26), strings.Repeat("a", 27), strings.Repeat("\x00", 26), semel.NewRecordID()} {
		if number, ok := n.Number(no); ok {
			t.Errorf("%q is taken for the id of %d", no, number)
		}
	}
}

func TestDigestTellsIdentitiesApart(t *testing.T) {
	secret := recordid.NewSecret()
	n := namer(t, secret)
	seen := make(map[[16]byte]semel.Identity)
	parts := []string{"", "a", "ab", "b", "\x00", "\x01a", strings.Repeat("a", 300), strings.Repeat("a", 301)}
	for _, tenant := range parts {
		for _, actor := range parts {
			for _, operation := range parts {
				for _, key := range parts {
					id := semel.Identity{Scope: semel.Scope{Tenant: tenant, Actor: actor, Operation: operation}, Key: key}
					d := n.Digest(id)
					if old, ok := seen[d]; ok {
						t.Fatalf("%q and %q have the same digest", old, id)
					}
					seen[d] = id
					if d != namer(t, secret).Digest(id) {
						t.Fatalf("the digest of %q is not always the same", id)
					}
				}
			}
		}
	}
	id := semel.Identity{Key: "k"}
	if n.Digest(id) == namer(t, recordid.NewSecret()).Digest(id) {
		t.Error("the digest does not depend on the secret")
	}
}

func TestSecretLength(t *testing.T) {
	for _, n := range []int{0, 16, 31, 33} {
		if _, err := recordid.New(make([]byte, n)); err == nil {
			t.Errorf("a secret of %d bytes is taken", n)
		}
	}
}

func BenchmarkID(b *testing.B) {
	n := namer(b, recordid.NewSecret())
	b.ReportAllocs()
	for i := range b.N {
		_ = n.ID(uint64(i))
	}
}

func BenchmarkDigest(b *testing.B) {
	n := namer(b, recordid.NewSecret())
	id := semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "alice", Operation: "POST /payments"}, Key: semel.NewRecordID()}
	b.ReportAllocs()
	for b.Loop() {
		_ = n.Digest(id)
	}
}
