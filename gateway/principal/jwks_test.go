package principal

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"
)

// TestRotatedKeys: a withdrawn key is honoured until the keys are loaded again,
// no longer; a new one is found at once, or the caller told when.
func TestRotatedKeys(t *testing.T) {
	up := newUpstream(t)
	synctest.Test(t, func(t *testing.T) {
		one, two := newSigner(t, "one"), newSigner(t, "two")
		i := &issuer{}
		i.publish(one)
		f := newFront(t, up, newJWT(t, i, nil))
		life := map[string]any{"exp": time.Now().Add(48 * time.Hour).Unix()}
		before, after := bearer(one.token(t, life)), bearer(two.token(t, life))
		want(t, "first", f.post("k", before).Code, 200)
		want(t, "loads", i.count(), 1)

		// The issuer takes a new key beside the old one.
		i.publish(one, two)
		early := f.untouched("the new key, too early", func() answer { return f.post("k", after) })
		want(t, "the new key, too early", early.Code, 503)
		want(t, "when to come again", early.Header().Get("Retry-After"), "30")
		want(t, "loads", i.count(), 1)
		time.Sleep(30 * time.Second)
		i.set(func() { i.delay = time.Second })
		var done sync.WaitGroup
		for range 10 { // one of them asks
			done.Go(func() { want(t, "the new key", f.post("k", after).replayed(), true) })
		}
		done.Wait()
		i.set(func() { i.delay = 0 })
		want(t, "loads", i.count(), 2)

		// And then withdraws the old one.
		i.publish(two)
		at := time.Now()
		want(t, "just withdrawn", f.post("k", before).replayed(), true)
		time.Sleep(DefaultKeysMaxAge - time.Second)
		for time.Since(at) <= DefaultKeysMaxAge {
			f.post("k", before) // one of them loads the keys
			time.Sleep(time.Second)
		}
		late := f.untouched("withdrawn", func() answer { return f.post("k", before) })
		want(t, "withdrawn", late.Code, 401)
		want(t, "the new key", f.post("k", after).replayed(), true)
		want(t, "effects", up.effects.Load(), 1)
	})
}

// TestVerifiedIsBounded: however many good tokens there are.
func TestVerifiedIsBounded(t *testing.T) {
	one := newSigner(t, "one")
	i := &issuer{}
	i.publish(one)
	s := newJWT(t, i, nil)
	want(t, "bound for tokens", s.verified.most, maxVerified)
	want(t, "bound for key ids", s.keys.absent.most, maxAbsent)
	s.verified.most = 10
	for range 100 {
		token := bearer(one.token(t, nil))
		for range 2 {
			_, err := identify(s, token)
			noError(t, err)
		}
		if n := len(s.verified.young) + len(s.verified.old); n > 20 {
			t.Fatalf("%d tokens are remembered", n)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s := newJWT(t, i, func(c *JWTConfig) { c.Tenant = "" })
		s.keys.absent.most = 3
		for n := range 30 {
			_, err := identify(s, bearer((&signer{fmt.Sprint("forged ", n), one.alg, one.key}).token(t, nil)))
			want(t, "forged", status(t, err), 401)
			if n := len(s.keys.absent.young) + len(s.keys.absent.old); n > 6 {
				t.Fatalf("%d key ids are remembered", n)
			}
			time.Sleep(minAsk)
		}
	})
}

// TestWithdrawnWhileIdle: where nobody asks for long, the first that does is not
// taken at the word of old keys.
func TestWithdrawnWhileIdle(t *testing.T) {
	for _, idle := range []time.Duration{DefaultKeysMaxAge, 30 * time.Minute, 24 * time.Hour} {
		withdrawnWhileIdle(t, idle)
	}
}

func withdrawnWhileIdle(t *testing.T, idle time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newSigner(t, "one"), newSigner(t, "two")
		i := &issuer{}
		i.publish(one)
		s := newJWT(t, i, nil)
		token := bearer(one.token(t, map[string]any{"exp": time.Now().Add(48 * time.Hour).Unix()}))
		_, err := identify(s, token)
		noError(t, err)
		i.publish(two)
		time.Sleep(idle)
		i.set(func() { i.delay = time.Second })
		var done sync.WaitGroup
		for range 50 {
			done.Go(func() {
				_, err := identify(s, token)
				want(t, "withdrawn", status(t, err), 401)
			})
		}
		done.Wait()
		want(t, "loads", i.count(), 2)
	})
}

// TestIssuerDown: what is known goes on for the bounded time, and no longer; the
// issuer is asked at most every 5 s, and its return is noticed.
func TestIssuerDown(t *testing.T) {
	for _, down := range []struct {
		name string
		do   func(i *issuer)
	}{
		{"refuses", func(i *issuer) { i.err = errors.New("connection refused") }},
		{"hangs", func(i *issuer) { i.delay = time.Hour }},
		{"fails", func(i *issuer) { i.status = 500 }},
		{"redirects", func(i *issuer) {
			i.status, i.header = 302, http.Header{"Location": {"https://evil.example/keys"}}
		}},
		{"says something else", func(i *issuer) { i.raw = []byte(`{"error":"maintenance"}`) }},
		{"says a great deal", func(i *issuer) { i.raw = []byte(`{"keys":[]}` + strings.Repeat(" ", maxKeySetBytes)) }},
		{"has too many keys", func(i *issuer) { i.raw = []byte(`{"keys":[` + strings.Repeat("{},", maxKeys) + `{}]}`) }},
	} {
		t.Run(down.name, func(t *testing.T) {
			up := newUpstream(t)
			synctest.Test(t, func(t *testing.T) {
				one := newSigner(t, "one")
				i := &issuer{}
				i.publish(one)
				var failures atomic.Int64
				f := newFront(t, up, newJWT(t, i, func(c *JWTConfig) {
					c.KeysMaxAge, c.KeysKeep = time.Minute, 10*time.Minute
					c.Failed = func(_ context.Context, err error) {
						failures.Add(1)
						if strings.Contains(err.Error(), "/keys") {
							t.Errorf("the error tells the path: %v", err)
						}
					}
				}))
				token := bearer(one.token(t, map[string]any{"exp": time.Now().Add(48 * time.Hour).Unix()}))
				loaded := time.Now()
				want(t, "before", f.post("k", token).Code, 200)
				i.set(func() { down.do(i) })
				for time.Since(loaded) < 11*time.Minute-10*time.Second {
					a := f.post("k", token)
					if !a.replayed() {
						t.Fatalf("after %v: %d %s", time.Since(loaded), a.Code, a.Body)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(time.Until(loaded.Add(11 * time.Minute)))
				for range 100 {
					a := f.untouched("down", func() answer { return f.post("k", token) })
					want(t, "down for long", a.Code, 503)
					if a.Header().Get("Retry-After") == "" || !strings.Contains(a.Body.String(), "same key") {
						t.Errorf("the answer does not say what to do: %v %s", a.Header(), a.Body)
					}
				}
				if most := int(time.Since(loaded)/minRetry) + 2; i.count() > most {
					t.Errorf("the issuer was asked %d times in %v, want at most %d", i.count(), time.Since(loaded), most)
				}
				want(t, "failures told", failures.Load(), int64(i.count()-1))

				i.set(func() { i.err, i.delay, i.status, i.header, i.raw = nil, 0, 0, nil, nil })
				time.Sleep(minRetry)
				want(t, "back", f.post("k", token).replayed(), true)
			})
		})
	}
}

// TestHungIssuerHoldsUpOne: while one request waits for the issuer, the others
// go on with the keys there are.
func TestHungIssuerHoldsUpOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{}
		i.publish(one)
		s := newJWT(t, i, func(c *JWTConfig) { c.KeysMaxAge = time.Minute })
		token := bearer(one.token(t, map[string]any{"exp": time.Now().Add(48 * time.Hour).Unix()}))
		_, err := identify(s, token)
		noError(t, err)
		i.set(func() { i.delay = time.Hour })
		for _, age := range []time.Duration{50 * time.Second, 70 * time.Second} {
			time.Sleep(age)
			var waited, failed atomic.Int64
			var done sync.WaitGroup
			for range 100 {
				done.Go(func() {
					began := time.Now()
					if _, err := identify(s, token); err != nil {
						failed.Add(1)
					}
					if time.Since(began) > 0 {
						waited.Add(1)
					}
				})
			}
			done.Wait()
			want(t, "waited", waited.Load(), 1)
			want(t, "failed", failed.Load(), 0)
		}
	})
}

// TestFirstKeysDown: before there are any keys nothing is known of a caller.
func TestFirstKeysDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{err: errors.New("connection refused")}
		i.publish(one)
		s := newJWT(t, i, nil)
		for range 1000 {
			_, err := identify(s, bearer(one.token(t, nil)))
			want(t, "status", status(t, err), 503)
			want(t, "when to come again", retryAfter(err), minRetry)
		}
		want(t, "loads", i.count(), 1)
		i.set(func() { i.err = nil })
		time.Sleep(minRetry)
		_, err := identify(s, bearer(one.token(t, nil)))
		want(t, "back", status(t, err), 0)
	})
}

// TestCacheControl: the issuer can say that keys are to be asked for sooner.
func TestCacheControl(t *testing.T) {
	for _, tt := range []struct {
		header http.Header
		want   time.Duration
	}{
		{http.Header{}, 10 * time.Minute},
		{http.Header{"Cache-Control": {"public, max-age=120"}}, 2 * time.Minute},
		{http.Header{"Cache-Control": {`MAX-AGE="120"`}, "Age": {"60"}}, time.Minute},
		{http.Header{"Cache-Control": {"max-age=86400"}}, 10 * time.Minute},
		{http.Header{"Cache-Control": {"max-age=1"}}, minAsk},
		{http.Header{"Cache-Control": {"no-store"}}, minAsk},
		{http.Header{"Cache-Control": {"max-age=120", "no-cache"}}, minAsk},
		{http.Header{"Cache-Control": {"max-age=-5"}}, minAsk},
		{http.Header{"Cache-Control": {"max-age=99999999999999999999"}, "Age": {"x"}}, 10 * time.Minute},
		{http.Header{"Age": {"99999999999"}}, 10 * time.Minute},
	} {
		want(t, fmt.Sprint(tt.header), freshness(tt.header, 10*time.Minute), tt.want)
	}
	synctest.Test(t, func(t *testing.T) {
		one, two := newSigner(t, "one"), newSigner(t, "two")
		i := &issuer{header: http.Header{"Cache-Control": {"max-age=60"}}}
		i.publish(one)
		s := newJWT(t, i, nil)
		token := bearer(one.token(t, nil))
		_, err := identify(s, token)
		noError(t, err)
		i.publish(two)
		time.Sleep(time.Minute)
		_, err = identify(s, token)
		want(t, "withdrawn", status(t, err), 401)
	})
}

// TestSlowIssuer: keys that are due again when they come are not asked for again
// before they were used.
func TestSlowIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{header: http.Header{"Cache-Control": {"no-store"}}, delay: 28 * time.Second}
		i.publish(one)
		s := newJWT(t, i, func(c *JWTConfig) { c.KeysTimeout = 30 * time.Second })
		_, err := identify(s, bearer(one.token(t, nil)))
		want(t, "status", status(t, err), 0)
		want(t, "loads", i.count(), 1)
	})
}

// TestEmptyKeys: an issuer that withdraws all keys means it.
func TestEmptyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{}
		i.publish(one)
		s := newJWT(t, i, nil)
		token := bearer(one.token(t, nil))
		_, err := identify(s, token)
		noError(t, err)
		i.set(func() { i.raw = []byte(`{"keys":[]}`) })
		time.Sleep(DefaultKeysMaxAge)
		_, err = identify(s, token)
		want(t, "withdrawn", status(t, err), 401)
	})
}

// TestKeySets: what in a set is not a public key for signatures is not taken,
// and does not keep the rest from being.
func TestKeySets(t *testing.T) {
	good, private := newSigner(t, "good"), newSigner(t, "private")
	goodText, err := json.Marshal(good.public())
	noError(t, err)
	privateText, err := json.Marshal(jose.JSONWebKey{Key: private.key, KeyID: "private"})
	noError(t, err)
	large, err := json.Marshal(jose.JSONWebKey{Key: &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 8192, 1), E: 65537}, KeyID: "large"})
	noError(t, err)
	keys, err := parseKeys([]byte(`{"keys":[
		7, null, {}, {"kty":"??"}, {"kty":"oct","k":"a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s","kid":"secret"},
		{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"off the curve"},
		` + string(large) + `, ` + string(privateText) + `, ` + strings.Replace(string(goodText), `"use":"sig"`, `"use":"enc"`, 1) + `,
		` + strings.Replace(string(goodText), `"use":"sig"`, `"key_ops":["sign"]`, 1) + `,
		` + strings.Replace(string(goodText), `"use":"sig"`, `"key_ops":"verify"`, 1) + `,
		` + string(goodText) + `], "more": true}`))
	noError(t, err)
	want(t, "ids", len(keys), 1)
	want(t, "keys", len(keys["good"]), 1)
	for _, text := range []string{``, `[]`, `{}`, `{"keys":null}`, `{"keys":{}}`, `{"keys":[]} x`} {
		if _, err := parseKeys([]byte(text)); err == nil {
			t.Errorf("%q was taken for a set of keys", text)
		}
	}
}

// TestKeysFile: a file is read again, and not waited for.
func TestKeysFile(t *testing.T) {
	one, two := newSigner(t, "one"), newSigner(t, "two")
	name := filepath.Join(t.TempDir(), "keys.json")
	write := func(s *signer) {
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.public()}})
		noError(t, err)
		noError(t, os.WriteFile(name+".new", text, 0o600))
		noError(t, os.Rename(name+".new", name))
	}
	synctest.Test(t, func(t *testing.T) {
		write(one)
		s := newJWT(t, nil, func(c *JWTConfig) {
			c.KeysURL, c.Transport, c.KeysFile, c.KeysKeep = "", nil, name, time.Minute
		})
		_, err := identify(s, bearer(one.token(t, nil)))
		noError(t, err)
		write(two)
		time.Sleep(fileAge)
		_, err = identify(s, bearer(one.token(t, nil)))
		want(t, "withdrawn", status(t, err), 401)
		_, err = identify(s, bearer(two.token(t, nil)))
		want(t, "new", status(t, err), 0)
		noError(t, os.Remove(name))
		time.Sleep(fileAge)
		_, err = identify(s, bearer(two.token(t, nil)))
		want(t, "without the file", status(t, err), 0)
		time.Sleep(time.Minute)
		_, err = identify(s, bearer(two.token(t, nil)))
		want(t, "without the file for long", status(t, err), 503)
	})
	c := JWTConfig{Issuer: testIssuer, Audiences: []string{"a"}, Algorithms: []string{"ES256"}, KeysFile: t.TempDir()}
	if _, err := NewJWT(c); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory as file: %v", err)
	}
}

// TestForgedKeyIDs: a flood of tokens that name keys which do not exist gets
// nothing, costs the issuer one request in 30 s, and keeps nobody waiting.
func TestForgedKeyIDs(t *testing.T) {
	up := newUpstream(t)
	synctest.Test(t, func(t *testing.T) {
		one, stranger := newSigner(t, "one"), newSigner(t, "x")
		i := &issuer{}
		i.publish(one)
		f := newFront(t, up, newJWT(t, i, nil))
		good := bearer(one.token(t, nil))
		want(t, "first", f.post("k", good).Code, 200)
		i.set(func() { i.delay = 100 * time.Millisecond })
		began := time.Now()
		calls := f.store.calls.Load()
		for n := 0; time.Since(began) < 5*time.Minute; n++ {
			for m := range 10 {
				forged := *stranger
				forged.kid = fmt.Sprint("forged-", n, "-", m)
				switch a := f.post("k", bearer(forged.token(t, nil))); a.Code {
				case 401, 503:
				default:
					t.Fatalf("a forged token got %d %s", a.Code, a.Body)
				}
			}
			time.Sleep(time.Second)
		}
		want(t, "calls of the store", f.store.calls.Load()-calls, 0)
		want(t, "effects", up.effects.Load(), 1)
		i.mu.Lock()
		for n := 1; n < len(i.times); n++ {
			if gap := i.times[n].Sub(i.times[n-1]); gap < minAsk {
				t.Errorf("the issuer was asked again after %v", gap)
			}
		}
		i.mu.Unlock()
		want(t, "the caller who is known", f.post("k", good).replayed(), true)

		// One retired key, for ever retried, does not even cost that.
		retired := bearer((&signer{"retired", stranger.alg, stranger.key}).token(t, map[string]any{"exp": time.Now().Add(time.Hour).Unix()}))
		time.Sleep(minAsk)
		f.post("k", retired)
		before := i.count()
		for range 60 {
			want(t, "retired", f.post("k", retired).Code, 401)
			time.Sleep(time.Second)
		}
		want(t, "loads for it", i.count()-before, 0)
	})
}

// TestGoneWhileWaiting: a client that goes does not take the load with it.
func TestGoneWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{delay: time.Second}
		i.publish(one)
		s := newJWT(t, i, nil)
		token := bearer(one.token(t, nil))
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for n := range 3 {
			done.Go(func() {
				r := httptest.NewRequest("POST", "/", nil)
				token(r)
				if n < 2 { // whoever comes first loads
					r = r.WithContext(ctx)
				}
				_, err := s.Identify(r)
				if n == 2 {
					want(t, "the one who stayed", status(t, err), 0)
				}
			})
		}
		synctest.Wait()
		cancel()
		done.Wait()
		want(t, "loads", i.count(), 1)
	})
}

// TestPanickingTransport: who waits is answered.
func TestPanickingTransport(t *testing.T) {
	s := newJWT(t, nil, func(c *JWTConfig) { c.Transport = panics{} })
	e := newEndpoint(t, nil, func(c *EndpointConfig) { c.Transport = panics{} })
	one := newSigner(t, "one")
	for _, source := range []Source{s, e} {
		for n := range 2 {
			func() {
				defer func() { _ = recover() }()
				_, err := identify(source, bearer(one.token(t, nil)))
				if n == 1 {
					want(t, "status", status(t, err), 503)
				}
			}()
		}
	}
	want(t, "waiting", len(e.waiting), 0)
	want(t, "calls", len(e.calls), 0)
	want(t, "flights", len(e.flights), 0)
}

type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("transport") }

func FuzzKeySet(f *testing.F) {
	text, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{newSigner(f, "one").public()}})
	f.Add(text)
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"","e":""},{"kty":"OKP","crv":"Ed25519","x":"AA"},{"kty":"AKP"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseKeys(text)
		if err != nil {
			return
		}
		for id, list := range keys {
			for _, key := range list {
				// Each key can be asked to verify, and says no.
				i := slices.IndexFunc(asymmetric, func(a jose.SignatureAlgorithm) bool { return fits(&key, a) })
				if i < 0 {
					continue
				}
				if _, err := keys.find(id, asymmetric[i]); err != nil {
					t.Errorf("the key %q is there and not found: %v", id, err)
				}
			}
		}
	})
}
