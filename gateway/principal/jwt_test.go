package principal

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// identify asks s about a request of the caller.
func identify(s Source, as caller) (Principal, error) {
	r := httptest.NewRequest("POST", "/orders", nil)
	as(r)
	return s.Identify(r)
}

// status is that of a refusal, 0 for none.
func status(t testing.TB, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	refusal, ok := errors.AsType[*semelhttp.ScopeError](err)
	if !ok {
		t.Fatalf("the error is a %T: %v", err, err)
	}
	return refusal.Status
}

func retryAfter(err error) time.Duration {
	refusal, _ := errors.AsType[*semelhttp.ScopeError](err)
	s, _ := strconv.Atoi(refusal.Header.Get("Retry-After"))
	return time.Duration(s) * time.Second
}

func TestTokens(t *testing.T) {
	s := newSigner(t, "one")
	plain := newSigner(t, "one") // another key
	wrongUse := newSigner(t, "enc")
	forPS := newSigner(t, "es384")
	i := &issuer{}
	encryption, other := wrongUse.public(), forPS.public()
	encryption.Use, other.Algorithm = "enc", "ES384"
	i.keys = []jose.JSONWebKey{s.public(), encryption, other}
	source := newJWT(t, i, func(c *JWTConfig) { c.Algorithms = []string{"ES256", "RS256", "EdDSA"} })
	hmac, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("k", 32))}, nil)
	noError(t, err)
	signed, err := hmac.Sign([]byte(`{}`))
	noError(t, err)
	symmetric, err := signed.CompactSerialize()
	noError(t, err)
	segment := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	good := s.token(t, nil)
	parts := strings.Split(good, ".")
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for _, tt := range []struct {
		name   string
		token  string
		status int
	}{
		{"good", good, 0},
		{"audience in a list", s.token(t, map[string]any{"aud": []string{"a", testAudience}}), 0},
		{"expired within the leeway", s.token(t, map[string]any{"exp": in(-20 * time.Second)}), 0},
		{"expired", s.token(t, map[string]any{"exp": in(-32 * time.Second)}), 401},
		{"expires never", s.token(t, map[string]any{"exp": nil}), 401},
		{"expires somewhen", s.token(t, map[string]any{"exp": "tomorrow"}), 401},
		{"expires too late to count", s.token(t, map[string]any{"exp": 1e300}), 401},
		{"not yet within the leeway", s.token(t, map[string]any{"nbf": in(20 * time.Second)}), 0},
		{"not yet", s.token(t, map[string]any{"nbf": in(time.Minute)}), 401},
		{"issued in the future", s.token(t, map[string]any{"iat": in(time.Minute)}), 401},
		{"no issuer", s.token(t, map[string]any{"iss": nil}), 401},
		{"issuer with a slash more", s.token(t, map[string]any{"iss": testIssuer + "/"}), 401},
		{"no audience", s.token(t, map[string]any{"aud": nil}), 401},
		{"empty audience", s.token(t, map[string]any{"aud": []string{}}), 401},
		{"audiences that are numbers", s.token(t, map[string]any{"aud": []int{1}}), 401},
		{"no subject", s.token(t, map[string]any{"sub": ""}), 403},
		{"subject that is a number", s.token(t, map[string]any{"sub": 7}), 401},
		{"subject with a control character", s.token(t, map[string]any{"sub": "a\x00b"}), 403},
		{"subject that could not be decoded", s.token(t, map[string]any{"sub": "a\ufffd"}), 403},
		{"tenant that is a number", s.token(t, map[string]any{"org": 7}), 403},
		{"tenant that is too long", s.token(t, map[string]any{"org": strings.Repeat("a", 256)}), 403},
		{"bound to a key", s.token(t, map[string]any{"cnf": map[string]string{"x5t#S256": "x"}}), 401},
		{"subject twice", resign(t, s, parts[0], `{"iss":"`+testIssuer+`","aud":"orders","exp":99999999999,"org":"acme","sub":"alice","sub":"bob"}`), 401},
		{"claims in other case", resign(t, s, parts[0], `{"ISS":"`+testIssuer+`","aud":"orders","exp":99999999999,"org":"acme","sub":"alice"}`), 401},
		{"another key of that name", plain.token(t, nil), 401},
		{"key for encryption", wrongUse.token(t, nil), 503}, // as if it were not there: it may yet come
		{"key for another algorithm", forPS.token(t, nil), 401},
		{"critical extension", s.sign(t, goodClaims(nil), map[jose.HeaderKey]any{"crit": []string{"exp"}, "exp": 1}), 401},
		{"unencoded payload", s.sign(t, goodClaims(nil), map[jose.HeaderKey]any{"b64": true}), 401},
		{"its own key", plain.sign(t, goodClaims(nil), map[jose.HeaderKey]any{"jwk": plain.public()}), 401},
		{"its own address of keys", plain.sign(t, goodClaims(nil), map[jose.HeaderKey]any{"jku": "https://evil.example", "x5u": "https://evil.example"}), 401},
		{"its own key, with a good signature", s.sign(t, goodClaims(nil), map[jose.HeaderKey]any{"jwk": plain.public(), "jku": "https://evil.example"}), 0},
		{"key id that is too long", (&signer{strings.Repeat("k", 257), s.alg, s.key}).token(t, nil), 401},
		{"unsigned", segment(`{"alg":"none"}`) + "." + parts[1] + ".", 401},
		{"signed by a secret", symmetric, 401},
		{"public key as secret", confused(t, s, parts[1]), 401},
		{"algorithm in other case", segment(`{"alg":"es256","kid":"one"}`) + "." + parts[1] + "." + parts[2], 401},
		{"signature cut", good[:len(good)-4], 401},
		{"without signature", parts[0] + "." + parts[1] + ".", 401},
		{"other claims", parts[0] + "." + segment(`{"iss":"`+testIssuer+`","aud":"orders","exp":99999999999,"org":"acme","sub":"mallory"}`) + "." + parts[2], 401},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"five parts", good + ".a.b", 401},
		{"as JSON", `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, 401},
		{"nothing", "", 401},
		{"not base64", "!.!.!", 401},
		{"critical extension, and a key that is not known", (&signer{"two", s.alg, s.key}).sign(t, goodClaims(nil), map[jose.HeaderKey]any{"crit": []string{"exp"}, "exp": 1}), 401},
		{"too long", s.token(t, map[string]any{"padding": strings.Repeat("A", maxToken)}), 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := identify(source, bearer(tt.token))
			want(t, "status", status(t, err), tt.status)
			if tt.status == 0 {
				want(t, "principal", p, Principal{Actor: "jwt:" + testIssuer + " alice", Tenant: "acme"})
				return
			}
			want(t, "principal", p, Principal{})
			challenge := ""
			if refusal, _ := errors.AsType[*semelhttp.ScopeError](err); true {
				challenge = refusal.Header.Get("WWW-Authenticate")
				if len(tt.token) > 8 && strings.Contains(fmt.Sprint(refusal, refusal.Detail, refusal.Header), tt.token[len(tt.token)-8:]) {
					t.Error("the refusal holds the token")
				}
			}
			if tt.status == 401 && !strings.HasPrefix(challenge, `Bearer error="invalid_token"`) {
				t.Errorf("the challenge is %q", challenge)
			}
		})
	}
	want(t, "requests to the issuer", i.count(), 1)
}

// resign signs a payload that no library would write.
func resign(t *testing.T, s *signer, _, payload string) string {
	t.Helper()
	js, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.key}, (&jose.SignerOptions{}).WithHeader("kid", s.kid))
	noError(t, err)
	signed, err := js.Sign([]byte(payload))
	noError(t, err)
	token, err := signed.CompactSerialize()
	noError(t, err)
	return token
}

// confused signs with the public key's text as a shared secret.
func confused(t *testing.T, s *signer, payload string) string {
	t.Helper()
	text, err := json.Marshal(s.public())
	noError(t, err)
	js, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: text}, (&jose.SignerOptions{}).WithHeader("kid", s.kid))
	noError(t, err)
	claims, err := base64.RawURLEncoding.DecodeString(payload)
	noError(t, err)
	signed, err := js.Sign(claims)
	noError(t, err)
	token, err := signed.CompactSerialize()
	noError(t, err)
	return token
}

func TestTokensOfEachAlgorithm(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	noError(t, err)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	noError(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	noError(t, err)
	var signers []*signer
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512} {
		signers = append(signers, &signer{string(alg), alg, rsaKey})
	}
	for alg, curve := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		noError(t, err)
		signers = append(signers, &signer{string(alg), alg, key})
	}
	signers = append(signers, &signer{"EdDSA", jose.EdDSA, ed})
	i := &issuer{}
	i.publish(append(signers, &signer{"weak", jose.RS256, weak})...)
	var names []string
	for _, s := range signers {
		names = append(names, string(s.alg))
	}
	every := newJWT(t, i, func(c *JWTConfig) { c.Algorithms = names })
	for _, s := range signers {
		_, err := identify(every, bearer(s.token(t, nil)))
		want(t, string(s.alg), status(t, err), 0)
		one := newJWT(t, i, func(c *JWTConfig) { c.Algorithms = []string{string(s.alg)} })
		for _, other := range signers {
			_, err := identify(one, bearer(other.token(t, nil)))
			want(t, string(other.alg)+" where it is not named", status(t, err) == 0, other == s)
			// A key serves for its own algorithm alone.
			if _, rsa := other.key.(*rsa.PrivateKey); other != s && rsa && s.key == other.key {
				_, err := identify(one, bearer((&signer{other.kid, s.alg, s.key}).token(t, nil)))
				want(t, string(s.alg)+" by a key for "+other.kid, status(t, err), 401)
			}
		}
	}
	_, err = identify(newJWT(t, i, func(c *JWTConfig) { c.Algorithms = []string{"RS256"} }), bearer((&signer{"weak", jose.RS256, weak}).token(t, nil)))
	want(t, "a key of 1024 bits", status(t, err), 401)
}

func TestTokenWithoutKeyID(t *testing.T) {
	one, two := newSigner(t, "one"), newSigner(t, "two")
	i := &issuer{}
	i.publish(one)
	s := newJWT(t, i, nil)
	token := bearer((&signer{"", one.alg, one.key}).token(t, nil))
	_, err := identify(s, token)
	want(t, "one key", status(t, err), 0)
	i.publish(one, two)
	s = newJWT(t, i, nil)
	for range 20 { // whichever comes first
		_, err = identify(s, token)
		want(t, "two keys", status(t, err), 401)
	}
	other := two.public()
	other.Algorithm = "ES384"
	i.set(func() { i.keys[1] = other })
	_, err = identify(newJWT(t, i, nil), token)
	want(t, "two keys, one for another algorithm", status(t, err), 0)
	i.set(func() { i.raw = []byte(`{"keys":[]}`) })
	_, err = identify(newJWT(t, i, nil), token)
	want(t, "no key", status(t, err), 401)
}

func TestTokenPlaces(t *testing.T) {
	s := newSigner(t, "one")
	i := &issuer{}
	i.publish(s)
	good := s.token(t, nil)
	source := newJWT(t, i, nil)
	for name, tt := range map[string]struct {
		as     caller
		status int
	}{
		"bearer in other case": {with("Authorization", "bEARER   "+good), 0},
		"basic":                {with("Authorization", "Basic YTpi"), 401},
		"bare":                 {with("Authorization", good), 401},
		"two lines":            {with("Authorization", "Bearer "+good, "Bearer "+good), 401},
		"another header":       {with("X-Token", good), 401},
	} {
		_, err := identify(source, tt.as)
		want(t, name, status(t, err), tt.status)
	}
	named := newJWT(t, i, func(c *JWTConfig) { c.Header = "x-token"; c.Tenant = "" })
	p, err := identify(named, with("X-Token", good))
	want(t, "in a header of its own", status(t, err), 0)
	want(t, "tenant", p.Tenant, "")
	_, err = identify(named, bearer(good))
	want(t, "not in that header", status(t, err), 401)
}

// TestSubjectsOfTwoIssuers: one name of two issuers is two callers, and long
// names are told apart.
func TestSubjectsOfTwoIssuers(t *testing.T) {
	s := newSigner(t, "one")
	i := &issuer{}
	i.publish(s)
	seen := map[Principal]string{}
	for _, iss := range []string{testIssuer, testIssuer + "/a", "https://other.example", testIssuer + strings.Repeat("x", 230)} {
		source := newJWT(t, i, func(c *JWTConfig) { c.Issuer = iss })
		for _, sub := range []string{"alice", "a alice", "Alice", strings.Repeat("a", 250), strings.Repeat("a", 251), "jwt-digest:x"} {
			p, err := identify(source, bearer(s.token(t, map[string]any{"iss": iss, "sub": sub})))
			noError(t, err)
			noError(t, semel.Identity{Scope: semel.Scope{Tenant: p.Tenant, Actor: p.Actor, Operation: "o"}, Key: "k"}.Validate())
			if before, ok := seen[p]; ok {
				t.Errorf("%s and %s %s are both %v", before, iss, sub, p)
			}
			seen[p] = iss + " " + sub
		}
	}
}

// TestExpiry: a token that was good is good until its end, which a token that
// was not there yet is not before its beginning.
func TestExpiry(t *testing.T) {
	up := newUpstream(t)
	synctest.Test(t, func(t *testing.T) {
		one := newSigner(t, "one")
		i := &issuer{}
		i.publish(one)
		f := newFront(t, up, newJWT(t, i, func(c *JWTConfig) { c.Leeway = 10 * time.Second }))
		at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
		token := bearer(one.token(t, map[string]any{"exp": at(time.Minute)}))
		later := bearer(one.token(t, map[string]any{"nbf": at(30 * time.Second)}))
		want(t, "first", f.post("k", token).Code, 200)
		want(t, "not yet", f.untouched("not yet", func() answer { return f.post("k", later) }).Code, 401)
		time.Sleep(20 * time.Second)
		want(t, "then", f.post("k", later).replayed(), true)
		time.Sleep(50 * time.Second)
		want(t, "at its end", f.post("k", token).replayed(), true)
		time.Sleep(time.Second)
		want(t, "behind its end", f.untouched("expired", func() answer { return f.post("k", token) }).Code, 401)
		want(t, "refreshed", f.post("k", bearer(one.token(t, nil))).replayed(), true)
		want(t, "loads", i.count(), 1)
	})
}

// TestForgedTokensAtOnce is the same by very many at once, for the race
// detector: those who wait are bounded, and callers that are known do not wait.
func TestForgedTokensAtOnce(t *testing.T) {
	up := newUpstream(t)
	one, stranger := newSigner(t, "one"), newSigner(t, "x")
	i := &issuer{}
	i.publish(one)
	s := newJWT(t, i, nil)
	f := newFront(t, up, s)
	good := bearer(one.token(t, nil))
	want(t, "first", f.post("k", good).Code, 200)
	s.keys.mu.Lock()
	s.keys.asked = s.keys.asked.Add(-minAsk) // the issuer may be asked again
	s.keys.mu.Unlock()
	i.set(func() { i.delay = 200 * time.Millisecond })
	const flood = 3000
	claims := goodClaims(nil)
	tokens := make([]caller, flood)
	for n := range tokens {
		forged := *stranger
		forged.kid = fmt.Sprint("forged-", n)
		tokens[n] = bearer(forged.sign(t, claims, nil))
	}
	calls := f.store.calls.Load()
	var statuses [600]atomic.Int64
	var done sync.WaitGroup
	start := make(chan struct{})
	for _, token := range tokens {
		done.Go(func() {
			<-start
			statuses[f.post("k", token).Code].Add(1)
		})
	}
	close(start)
	done.Wait()
	want(t, "calls of the store", f.store.calls.Load()-calls, 0)
	for code := range statuses {
		if n := statuses[code].Load(); n > 0 {
			t.Logf("%d answers of %d", n, code)
		}
	}
	want(t, "answers of 401 and 503", statuses[401].Load()+statuses[503].Load(), flood)
	want(t, "loads", i.count(), 2)
	for range 100 {
		done.Go(func() { want(t, "the caller who is known", f.post("k", good).replayed(), true) })
	}
	done.Wait()
	want(t, "effects", up.effects.Load(), 1)
}

// TestHostileTokens: what a token costs is bounded by its length.
func TestHostileTokens(t *testing.T) {
	one := newSigner(t, "one")
	i := &issuer{}
	i.publish(one)
	s := newJWT(t, i, nil)
	segment := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	rest := "." + segment(`{}`) + "." + segment(strings.Repeat("s", 64))
	for name, token := range map[string]string{
		"deep header":    segment(strings.Repeat(`{"a":`, 1000)+"1"+strings.Repeat("}", 1000)) + rest,
		"deep claims":    segment(`{"alg":"ES256","kid":"one"}`) + "." + segment(strings.Repeat(`{"a":`, 800)+"1"+strings.Repeat("}", 800)) + "." + segment("s"),
		"many dots":      strings.Repeat(".", maxToken),
		"many members":   segment(`{"alg":"ES256"`+strings.Repeat(`,"a":1`, 900)+`}`) + rest,
		"large numbers":  segment(`{"alg":"ES256","kid":"one"}`) + "." + segment(`{"exp":1e999999999}`) + "." + segment("s"),
		"many audiences": segment(`{"alg":"ES256","kid":"one"}`) + "." + segment(`{"aud":[`+strings.Repeat(`"a",`, 1300)+`"a"]}`) + "." + segment("s"),
		"certificates":   segment(`{"alg":"ES256","x5c":[`+strings.Repeat(`"MIIB",`, 600)+`"MIIB"]}`) + rest,
		"large key":      segment(`{"alg":"ES256","jwk":{"kty":"RSA","e":"AQAB","n":"`+strings.Repeat("f", 5000)+`"}}`) + rest,
	} {
		if len(token) > maxToken {
			t.Errorf("%s: %d bytes; the test needs %d at most", name, len(token), maxToken)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := identify(s, bearer(token))
		runtime.ReadMemStats(&after)
		want(t, name, status(t, err), 401)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s took %d bytes of memory", name, n)
		}
	}
	want(t, "loads", i.count(), 0)
}

func FuzzToken(f *testing.F) {
	one := newSigner(f, "one")
	i := &issuer{}
	i.publish(one)
	s := newJWT(f, i, nil)
	good := one.token(f, nil)
	for _, seed := range []string{
		good, "", ".", "..", "a.b.c", strings.Replace(good, ".", "..", 1), good[:len(good)/2], strings.ToUpper(good),
		base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + ".e30.", one.token(f, map[string]any{"exp": 1}),
		(&signer{"two", one.alg, one.key}).token(f, nil), (&signer{"", one.alg, one.key}).token(f, nil),
	} {
		f.Add(seed)
	}
	_, err := identify(s, bearer(good))
	noError(f, err)
	f.Fuzz(func(t *testing.T, token string) {
		p, err := identify(s, bearer(token))
		if code := status(t, err); err != nil && code != 401 && code != 403 && code != 503 {
			t.Errorf("status %d", code)
		}
		// Whoever is known was signed for: fuzzing cannot sign.
		if err == nil && p != (Principal{Actor: "jwt:" + testIssuer + " alice", Tenant: "acme"}) {
			t.Errorf("%q is %v", token, p)
		}
		if err != nil && p != (Principal{}) {
			t.Errorf("%q is refused and %v", token, p)
		}
		if n := i.count(); n > 1+int(time.Since(i.times[0])/minAsk) {
			t.Errorf("the issuer was asked %d times", n)
		}
	})
}

func BenchmarkJWT(b *testing.B) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	noError(b, err)
	for _, s := range []*signer{newSigner(b, "es"), {"rs", jose.RS256, rsaKey}} {
		b.Run(string(s.alg), func(b *testing.B) {
			i := &issuer{}
			i.publish(s)
			source := newJWT(b, i, func(c *JWTConfig) { c.Algorithms = []string{string(s.alg)} })
			r := httptest.NewRequest("POST", "/", nil)
			bearer(s.token(b, nil))(r)
			b.ReportAllocs()
			for b.Loop() {
				source.verified = generations[[32]byte, verified]{most: maxVerified} // it would be remembered
				if _, err := source.Identify(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
