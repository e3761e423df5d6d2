package semel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// keyOf is the key of a letter.
func keyOf(letter string) semel.EncryptionKey {
	return semel.EncryptionKey{Name: letter, Secret: bytes.Repeat([]byte(letter), 32)}
}

func newCipher(t testing.TB, letters ...string) *semel.Cipher {
	t.Helper()
	var keys []semel.EncryptionKey
	for _, l := range letters {
		keys = append(keys, keyOf(l))
	}
	c, err := semel.NewCipher(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Keys are what a line says, and what is wrong with them is told without them.
func TestEncryptionKeys(t *testing.T) {
	const secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
	keys, err := semel.ParseEncryptionKeys([]byte("# the second is old\n\n 2026.b-1 :  " + secret + " \r\na:" + secret))
	if err != nil || len(keys) != 2 || keys[0].Name != "2026.b-1" || keys[1].Name != "a" || string(keys[0].Secret) != "secret-secret-secret-secret-secr" {
		t.Errorf("%v, %v", keys, err)
	}
	for _, text := range []string{
		secret, "a: " + secret[1:], "a: c2hvcnQtc2VjcmV0", ": " + secret, "a b: " + secret, "ä: " + secret,
		strings.Repeat("a", 65) + ": " + secret, "a: " + secret + " " + secret,
	} {
		_, err := semel.ParseEncryptionKeys([]byte("\n" + text))
		if err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), secret[1:]) || strings.Contains(err.Error(), "short-secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got := fmt.Sprintf("%v %+v %s", keys, keys[0], keys[1]); got != "[2026.b-1 a] 2026.b-1 a" {
		t.Errorf("keys are printed as %s", got)
	}
	for name, keys := range map[string][]semel.EncryptionKey{
		"none": {}, "two of a name": {keyOf("a"), {Name: "a", Secret: keyOf("b").Secret}}, "short": {{Name: "a", Secret: make([]byte, 31)}}, "unnamed": {{Secret: make([]byte, 32)}},
	} {
		if _, err := semel.NewCipher(keys...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// What the caller does with its keys afterwards is its own business.
	k := keyOf("a")
	c, err := semel.NewCipher(k)
	if err != nil {
		t.Fatal(err)
	}
	id := submit("k").Identity
	text := c.Encrypt(id, "n", []byte("text"))
	clear(k.Secret)
	if got, err := c.Decrypt(id, "n", text); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

// A text opens as what it was encrypted as, and nowhere else.
func TestCipherTexts(t *testing.T) {
	a, b := newCipher(t, "a"), newCipher(t, "b")
	id, other := submit("k").Identity, submit("l").Identity
	otherTenant, otherActor, otherOperation, shifted := id, id, id, id
	otherTenant.Tenant, otherActor.Actor, otherOperation.Operation = "x", "x", "x"
	shifted.Tenant, shifted.Actor = id.Tenant+id.Actor, ""
	secret := []byte("secret")
	text := a.Encrypt(id, "name", secret)
	if bytes.Contains(text, secret) || bytes.Equal(text, a.Encrypt(id, "name", secret)) {
		t.Errorf("encrypted to %q", text)
	}
	if got, err := newCipher(t, "b", "a").Decrypt(id, "name", text); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("%q, %v", got, err)
	}
	for what, open := range map[string]func() ([]byte, error){
		"another identity": func() ([]byte, error) { return a.Decrypt(other, "name", text) },
		"another tenant":   func() ([]byte, error) { return a.Decrypt(otherTenant, "name", text) },
		"another actor":    func() ([]byte, error) { return a.Decrypt(otherActor, "name", text) },
		"another action":   func() ([]byte, error) { return a.Decrypt(otherOperation, "name", text) },
		"parts shifted":    func() ([]byte, error) { return a.Decrypt(shifted, "name", text) },
		"another name":     func() ([]byte, error) { return a.Decrypt(id, "other", text) },
		"another key":      func() ([]byte, error) { return b.Decrypt(id, "name", text) },
		"no cipher":        func() ([]byte, error) { return (*semel.Cipher)(nil).Decrypt(id, "name", text) },
		"cut off":          func() ([]byte, error) { return a.Decrypt(id, "name", text[:len(text)-1]) },
		"cut in the salt":  func() ([]byte, error) { return a.Decrypt(id, "name", text[:30]) },
		"cut in the name":  func() ([]byte, error) { return a.Decrypt(id, "name", text[:19]) },
	} {
		if got, err := open(); !errors.Is(err, semel.ErrUnreadable) || got != nil {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		if got, err := a.Decrypt(id, "name", changed); err == nil && !bytes.Equal(got, changed) {
			t.Errorf("with byte %d changed it is %q", i, got)
		}
	}
	for _, c := range []*semel.Cipher{nil, a} { // from before
		if got, err := c.Decrypt(id, "name", []byte(`{"a":1}`)); err != nil || string(got) != `{"a":1}` {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got := (*semel.Cipher)(nil).Encrypt(id, "name", secret); !bytes.Equal(got, secret) {
		t.Errorf("without a cipher it is %q", got)
	}
}

// An unreadable result is an error of its own, which says that the effect is there,
// whichever way it is met, and no waiter, look-up or retry policy executes again.
func TestUnreadableResult(t *testing.T) {
	s := newStore(t)
	g, err := semel.New(semel.Config{Store: s, Cipher: newCipher(t, "a")})
	if err != nil {
		t.Fatal(err)
	}
	var e effects
	out, err := g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, out, err, semel.AnswerExecuted)
	if string(out.Result.Body) != "effect 1" {
		t.Errorf("the first is answered %q", out.Result.Body)
	}
	var failed []semel.StoreFailed
	g, err = semel.New(semel.Config{
		Store: s, Policy: semel.Policy{OnCrash: semel.CrashRetry},
		Observer: &semel.Observer{StoreFailed: func(_ context.Context, f semel.StoreFailed) { failed = append(failed, f) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err = g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, out, err, semel.AnswerUnavailable)
	failure, _ := errors.AsType[*semel.Error](err)
	if !errors.Is(err, semel.ErrUnreadable) || !errors.Is(err, semel.ErrMaybeEffect) || failure.Retry() != semel.RetrySameKey || failure.RetryAfter <= 0 ||
		out.Record.State != semel.StateCompleted || out.Result.Size() != 0 || out.Claimed ||
		!strings.Contains(err.Error(), "has completed") || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("%+v, %v", out, err)
	}
	r, err := g.Find(t.Context(), submit("k").Identity)
	if !errors.Is(err, semel.ErrUnreadable) || r.State != semel.StateCompleted || r.Result.Label != "ok" || r.Result.Size() != 0 || len(r.Result.Head) != 0 {
		t.Errorf("found %+v, %v", r, err)
	}
	if len(failed) != 2 || failed[0].Call != "decrypt" || failed[0].RecordID != r.ID || failed[0].Scope != scope {
		t.Errorf("the observer is told %+v", failed)
	}
	other := submit("k")
	other.Fingerprint = semel.FingerprintOf([]byte("another request"))
	out, err = g.Do(t.Context(), other, e.do)
	wantAnswer(t, out, err, semel.AnswerMismatch)
	e.want(t, 1)
	entries, err := s.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailUnavailable})
	if err != nil || len(entries) != 1 || entries[0].RecordID != r.ID {
		t.Errorf("the trail tells of %+v, %v", entries, err)
	}
}

// An owner that comes back after another has completed the record is told what is
// on record, or that it cannot be read.
func TestZombieMeetsAnEncryptedResult(t *testing.T) {
	for letter, want := range map[string]semel.Answer{"a": semel.AnswerReplayed, "b": semel.AnswerUnavailable} {
		bubble(t, func(t *testing.T) {
			mem := newStore(t)
			guard := func(s semel.Store, letter string) *semel.Guard {
				g, err := semel.New(semel.Config{Store: s, Cipher: newCipher(t, letter), Policy: semel.Policy{OnCrash: semel.CrashRetry}})
				if err != nil {
					t.Fatal(err)
				}
				return g
			}
			zombie, other := guard(&faulty{Store: mem, before: failFor(30*time.Second, "renew")}, letter), guard(mem, "a")
			var e effects
			out, err := zombie.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
				time.Sleep(16 * time.Second)
				out, err := other.Do(t.Context(), submit("k"), e.do)
				wantAnswer(t, out, err, semel.AnswerExecuted)
				return semel.Result{Body: []byte("zombie")}, nil
			})
			wantAnswer(t, out, err, want)
			if want == semel.AnswerReplayed && string(out.Result.Body) != "effect 1" {
				t.Errorf("the zombie's caller got %q", out.Result.Body)
			}
			if want == semel.AnswerUnavailable && (!errors.Is(err, semel.ErrUnreadable) || out.Result.Size() != 0 || !out.Claimed) {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

// The tombstone of a result that the store does not take is encrypted too: its
// reference may say as much as a result.
func TestEncryptedTombstone(t *testing.T) {
	mem := newStore(t)
	tries := 0
	s := &faulty{Store: mem, before: func(call string) error {
		if tries++; call == "complete" && tries == 2 {
			return semel.ErrTooLarge
		}
		return nil
	}}
	g, err := semel.New(semel.Config{Store: s, Cipher: newCipher(t, "a")})
	if err != nil {
		t.Fatal(err)
	}
	out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		return semel.Result{Codec: "c", Head: []byte("secret"), Body: []byte("secret"), Reference: "/secret", Label: "201"}, nil
	})
	wantAnswer(t, out, err, semel.AnswerExecuted)
	if r, err := mem.Find(t.Context(), submit("k").Identity); err != nil || !r.Result.Tombstone || strings.Contains(fmt.Sprintf("%s %s %s", r.Result.Head, r.Result.Body, r.Result.Reference), "secret") {
		t.Errorf("on record is %+v, %v", r.Result, err)
	}
	out, err = g.Do(t.Context(), submit("k"), nil)
	wantAnswer(t, out, err, semel.AnswerReplayed)
	if want := (semel.Result{Codec: "c", Reference: "/secret", Label: "201", Tombstone: true}); fmt.Sprintf("%+v", out.Result) != fmt.Sprintf("%+v", want) {
		t.Errorf("replayed %+v; want %+v", out.Result, want)
	}
}

// Keys are replaced while results are encrypted and decrypted.
func TestRotateWhileInUse(t *testing.T) {
	c := newCipher(t, "a", "b")
	g, err := semel.New(semel.Config{Store: newStore(t), Cipher: c})
	if err != nil {
		t.Fatal(err)
	}
	var e effects
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if out, err := g.Do(t.Context(), submit(fmt.Sprint(n)), e.do); err != nil && !errors.Is(err, semel.ErrInProgress) {
					t.Error(out, err)
				}
				order := []semel.EncryptionKey{keyOf("a"), keyOf("b")}
				if i%2 == 0 {
					order[0], order[1] = order[1], order[0]
				}
				if err := c.Rotate(order...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	e.want(t, 50)
}

// BenchmarkCipher measures a first request and a replay, of 1 KiB and of nothing, with
// encryption and without.
func BenchmarkCipher(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 64 << 10} {
		for _, c := range []*semel.Cipher{nil, newCipher(b, "a")} {
			body := make([]byte, size)
			do := func(context.Context) (semel.Result, error) {
				return semel.Result{Codec: "c", Head: body[:min(size, 100)], Body: body, Label: "201"}, nil
			}
			with := map[bool]string{true: "plain", false: "encrypted"}[c == nil]
			b.Run(fmt.Sprintf("first/%d/%s", size, with), func(b *testing.B) {
				g, err := semel.New(semel.Config{Store: newStore(b), Cipher: c})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					n++
					if _, err := g.Do(b.Context(), submit(fmt.Sprint(n)), do); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("replay/%d/%s", size, with), func(b *testing.B) {
				g, err := semel.New(semel.Config{Store: newStore(b), Cipher: c})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := g.Do(b.Context(), submit("k"), do); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
