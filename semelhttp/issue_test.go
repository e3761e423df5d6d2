package semelhttp

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func newIssuer(t testing.TB, secrets ...[]byte) *KeyIssuer {
	t.Helper()
	if len(secrets) == 0 {
		secrets = [][]byte{bytes.Repeat([]byte{1}, 32)}
	}
	k, err := NewKeyIssuer(KeyIssuerConfig{Secrets: secrets, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestIssuedKeysBelongToTheirScope(t *testing.T) {
	k := newIssuer(t)
	owner := semel.Scope{Tenant: "t", Actor: "alice", Operation: "pay"}
	key, _ := k.Issue(owner)
	other, _ := k.Issue(owner)
	if key == other {
		t.Fatal("two keys are the same")
	}
	if err := (semel.Identity{Scope: owner, Key: key}).Validate(); err != nil || len(key) > 100 {
		t.Fatalf("key %q: %v", key, err)
	}
	if got, err := ParseKey([]string{key}, false); got != key || err != nil {
		t.Fatalf("as a header: %q, %v", got, err)
	}
	if err := k.Verify(key, owner); err != nil {
		t.Fatal(err)
	}
	for _, s := range []semel.Scope{
		{Tenant: "t", Actor: "bob", Operation: "pay"},
		{Tenant: "u", Actor: "alice", Operation: "pay"},
		{Tenant: "t", Actor: "alice", Operation: "refund"},
		{Tenant: "t", Actor: "alice"},
		{Tenant: "ta", Actor: "lice", Operation: "pay"},
		{},
	} {
		if err := k.Verify(key, s); !errors.Is(err, ErrKeyNotIssued) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	// One for all operations of its caller, and of no other.
	key, _ = k.Issue(semel.Scope{Tenant: "t", Actor: "alice"})
	for _, op := range []string{"pay", "refund"} {
		if err := k.Verify(key, semel.Scope{Tenant: "t", Actor: "alice", Operation: op}); err != nil {
			t.Error(err)
		}
	}
	if err := k.Verify(key, semel.Scope{Tenant: "t", Actor: "bob", Operation: "pay"}); !errors.Is(err, ErrKeyNotIssued) {
		t.Error(err)
	}
}

// No bit of a key can be changed: not its end of life, nor what it is bound to.
func TestIssuedKeysCannotBeForged(t *testing.T) {
	k := newIssuer(t)
	s := semel.Scope{Actor: "alice", Operation: "pay"}
	key, _ := k.Issue(s)
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(key, issuedPrefix))
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(raw) * 8 {
		forged := bytes.Clone(raw)
		forged[i/8] ^= 1 << (i % 8)
		if err := k.Verify(issuedPrefix+base64.RawURLEncoding.EncodeToString(forged), s); !errors.Is(err, ErrKeyNotIssued) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for _, bad := range []string{"", issuedPrefix, key + "A", key[:len(key)-1], "x" + key, strings.ToUpper(key), key[:len(key)-1] + "!", "8e03978e-40d5-43e8-bc93-6894a57f9324"} {
		if err := k.Verify(bad, s); !errors.Is(err, ErrKeyNotIssued) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := newIssuer(t, bytes.Repeat([]byte{2}, 32)).Verify(key, s); !errors.Is(err, ErrKeyNotIssued) {
		t.Errorf("another secret: %v", err)
	}
	// A rotation: the new secret signs, the old one still verifies.
	if err := newIssuer(t, bytes.Repeat([]byte{2}, 32), bytes.Repeat([]byte{1}, 32)).Verify(key, s); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
}

func TestIssuedKeysExpireBeforeRetentionCould(t *testing.T) {
	k := newIssuer(t)
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	k.now = func() time.Time { return now }
	s := semel.Scope{Operation: "pay"}
	key, expires := k.Issue(s)
	if expires.Sub(now) != DefaultKeyLife {
		t.Fatalf("expires %v", expires)
	}
	for _, c := range []struct {
		after time.Duration
		want  error
	}{
		{-time.Hour, nil}, // a host whose clock is behind
		{0, nil},
		{DefaultKeyLife, nil},
		{DefaultKeyLife + 5*time.Minute - time.Second, nil}, // the skew
		{DefaultKeyLife + 5*time.Minute, ErrKeyExpired},
		{1000 * time.Hour, ErrKeyExpired},
	} {
		now = expires.Add(-DefaultKeyLife).Add(c.after)
		if err := k.Verify(key, s); !errors.Is(err, c.want) {
			t.Errorf("after %v: %v; want %v", c.after, err, c.want)
		}
	}
	for _, c := range []KeyIssuerConfig{
		{Retention: 24 * time.Hour},
		{Secrets: [][]byte{make([]byte, 31)}, Retention: 24 * time.Hour},
		{Secrets: [][]byte{make([]byte, 32)}},
		{Secrets: [][]byte{make([]byte, 32)}, Retention: 70 * time.Minute},
		{Secrets: [][]byte{make([]byte, 32)}, Retention: 24 * time.Hour, Life: -1},
	} {
		if _, err := NewKeyIssuer(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func FuzzVerifyIssuedKey(f *testing.F) {
	k := newIssuer(f)
	s := semel.Scope{Operation: "pay"}
	key, _ := k.Issue(s)
	f.Add(key)
	f.Add("")
	f.Add(issuedPrefix + strings.Repeat("A", 55))
	f.Fuzz(func(t *testing.T, key string) {
		if err := k.Verify(key, semel.Scope{Operation: "other"}); err == nil {
			t.Fatal("a key for another operation was accepted")
		}
	})
}
