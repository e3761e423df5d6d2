package principal

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/semelhq/semel"
)

// subject is a source with requests of callers it tells apart, or refuses.
type subject struct {
	name   string
	source Source
	alice  caller
	// The same caller with another credential; nil where that is another caller.
	renewed caller
	// Other callers; nil where there are none.
	bob, otherTenant caller
	// Callers that are refused, with the status.
	refused map[string]refused
}

type refused struct {
	as     caller
	status int
}

// subjects makes one of each kind of source.
func subjects(t testing.TB) []subject {
	var list []subject

	one, two, stranger := newSigner(t, "one"), newSigner(t, "two"), newSigner(t, "one")
	tokens := subject{
		alice: bearer(one.token(t, nil)), renewed: bearer(two.token(t, nil)),
		bob:         bearer(one.token(t, map[string]any{"sub": "bob"})),
		otherTenant: bearer(one.token(t, map[string]any{"org": "other"})),
		refused: map[string]refused{
			"nobody":         {func(*http.Request) {}, 401},
			"expired":        {bearer(one.token(t, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})), 401},
			"forged":         {bearer(stranger.token(t, nil)), 401},
			"for another":    {bearer(one.token(t, map[string]any{"aud": "billing"})), 401},
			"of another":     {bearer(one.token(t, map[string]any{"iss": "https://evil.example"})), 401},
			"without tenant": {bearer(one.token(t, map[string]any{"org": nil})), 403},
			"without name":   {bearer(one.token(t, map[string]any{"sub": nil})), 403},
		},
	}
	byURL := tokens
	i := &issuer{}
	i.publish(one, two)
	byURL.name, byURL.source = "jwt by url", newJWT(t, i, nil)
	list = append(list, byURL)

	byFile := tokens
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{one.public(), two.public()}})
	noError(t, err)
	name := filepath.Join(t.TempDir(), "keys.json")
	noError(t, os.WriteFile(name, text, 0o600))
	byFile.name, byFile.source = "jwt by file", newJWT(t, nil, func(c *JWTConfig) { c.KeysURL, c.KeysFile, c.Transport = "", name, nil })
	list = append(list, byFile)

	hosts := tokens
	hosts.name, hosts.source = "jwt per host", PerHost(byFile.source)
	hosts.otherTenant = all(tokens.alice, func(r *http.Request) { r.Host = "other.example" })
	list = append(list, hosts)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	bob := func(c *x509.Certificate) {
		c.Subject.CommonName = "bob"
		c.URIs[0].Path = "/bob"
	}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	shown := func(c *x509.Certificate) caller {
		return func(r *http.Request) {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
		}
	}
	passedOn := func(c *x509.Certificate) caller {
		return all(from("10.1.0.9:4711"), with("Client-Cert", ":"+base64.StdEncoding.EncodeToString(c.Raw)+":"))
	}
	for _, name := range []CertificateName{CertificateURI, CertificateSubject, CertificateKey} {
		direct, err := NewMTLS(MTLSConfig{Name: name, Proxies: trusted})
		noError(t, err)
		list = append(list, subject{
			name: "mtls " + string(name), source: direct,
			alice: shown(certificate(t, key, nil)), renewed: shown(certificate(t, key, nil)), bob: shown(certificate(t, nil, bob)),
			refused: map[string]refused{
				"nobody":  {func(*http.Request) {}, 401},
				"expired": {shown(certificate(t, key, expired)), 401},
				"not verified": {func(r *http.Request) {
					r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate(t, key, nil)}}
				}, 401},
				"forged header": {all(passedOn(certificate(t, key, nil)), from("203.0.113.5:1")), 401},
			},
		}, subject{
			name: "mtls by proxy " + string(name), source: direct,
			alice: passedOn(certificate(t, key, nil)), renewed: passedOn(certificate(t, key, nil)), bob: passedOn(certificate(t, nil, bob)),
			refused: map[string]refused{
				"nobody":          {all(from("10.1.0.9:4711"), shown(certificate(t, key, nil))), 401}, // the proxy's own is not the client's
				"expired":         {passedOn(certificate(t, key, expired)), 401},
				"two":             {all(passedOn(certificate(t, key, nil)), with("Client-Cert", "::", "::")), 403},
				"no certificate":  {all(from("10.1.0.9:4711"), with("Client-Cert", ":aGVsbG8=:")), 403},
				"a great deal":    {all(from("10.1.0.9:4711"), with("Client-Cert", ":"+strings.Repeat("AAAA", 8<<10)+":")), 403},
				"without colons":  {all(from("10.1.0.9:4711"), with("Client-Cert", "aGVsbG8=")), 403},
				"from a stranger": {all(passedOn(certificate(t, key, nil)), from("203.0.113.5:1")), 401},
			},
		})
	}

	j := &judge{says: known(map[string][2]string{
		"Bearer a": {"alice", "acme"}, "Bearer a2": {"alice", "acme"}, "Bearer b": {"bob", "acme"}, "Bearer c": {"alice", "other"},
		"Bearer no tenant": {"alice", ""}, "Bearer no name": {"", "acme"},
	})}
	list = append(list, subject{
		name: "endpoint", source: newEndpoint(t, j, nil),
		alice: bearer("a"), renewed: bearer("a2"), bob: bearer("b"), otherTenant: bearer("c"),
		refused: map[string]refused{
			"nobody":         {func(*http.Request) {}, 401},
			"revoked":        {bearer("revoked"), 401},
			"forged":         {all(bearer("revoked"), with("X-Auth-Subject", "alice"), with("X-Auth-Tenant", "acme")), 401},
			"without tenant": {bearer("no tenant"), 403},
			"without name":   {bearer("no name"), 403},
		},
	})

	said, err := NewHeader(HeaderConfig{Subject: "X-User", Tenant: "X-Org", Proxies: trusted})
	noError(t, err)
	says := func(user, org string) caller {
		return all(from("10.1.2.3:4711"), with("X-User", user), with("X-Org", org))
	}
	list = append(list, subject{
		name: "header", source: said,
		alice: says("alice", "acme"), renewed: all(says("alice", "acme"), from("[fd00::1]:9"), bearer("whatever")),
		bob: says("bob", "acme"), otherTenant: says("alice", "other"),
		refused: map[string]refused{
			"nobody":         {from("10.1.2.3:4711"), 401},
			"from elsewhere": {all(says("alice", "acme"), from("203.0.113.5:1")), 403},
			"twice":          {all(says("alice", "acme"), with("X-User", "alice", "bob")), 403},
			"tenant twice":   {all(says("alice", "acme"), with("X-Org", "acme", "other")), 403},
			"empty":          {says(" ", "acme"), 401},
			"without tenant": {says("alice", ""), 401},
			"other spelling": {all(from("10.1.2.3:4711"), with("X-Org", "acme"), func(r *http.Request) { r.Header["X_user"] = []string{"alice"} }), 401},
		},
	})

	digest, err := NewDigest(DigestConfig{Headers: []string{"authorization"}, Challenge: "Bearer"})
	noError(t, err)
	list = append(list, subject{
		name: "digest", source: digest, alice: bearer("a"), bob: bearer("b"),
		refused: map[string]refused{"nobody": {func(*http.Request) {}, 401}, "empty": {with("Authorization", " "), 401}},
	})
	cookie, err := NewDigest(DigestConfig{Cookie: "session"})
	noError(t, err)
	list = append(list, subject{
		name: "cookie", source: cookie, alice: with("Cookie", "session=a"), renewed: with("Cookie", "theme=dark; session=a"), bob: with("Cookie", "session=b"),
		refused: map[string]refused{
			"nobody": {with("Cookie", "theme=dark"), 401}, "twice": {with("Cookie", "session=a; session=b"), 401}, "empty": {with("Cookie", "session="), 401},
		},
	})

	list = append(list, subject{name: "shared", source: Shared{}, alice: func(*http.Request) {}, renewed: bearer("whatever")})
	return list
}

// TestMatrix crosses each source with each way in which a caller could learn of
// another's request: the same caller gets its answers, another one is as if
// there were nobody else, and a refused one gets the same refusal everywhere,
// before the store is asked.
func TestMatrix(t *testing.T) {
	ways := []struct {
		name string
		// prepare does what alice does before; try is what then somebody does.
		// It returns what that says of alice's request.
		prepare func(f *front, alice caller) (left string)
		try     func(f *front, left string, as caller) answer
		// own is what the same caller gets, other what another gets.
		own, other func(a answer) bool
	}{
		{
			"replay",
			func(f *front, alice caller) string { f.post("k", alice); return "" },
			func(f *front, _ string, as caller) answer { return f.post("k", as) },
			func(a answer) bool { return a.Code == 200 && a.replayed() && a.Body.String() == "effect 1" },
			func(a answer) bool { return a.Code == 200 && !a.replayed() && a.Body.String() == "effect 2" },
		},
		{
			"mismatch",
			func(f *front, alice caller) string { f.post("k", alice); return "" },
			func(f *front, _ string, as caller) answer {
				return f.do("POST", "http://api.example/orders", "k", `{"n":2}`, as)
			},
			func(a answer) bool { return a.Code == 422 },
			func(a answer) bool { return a.Code == 200 && !a.replayed() && a.Body.String() == "effect 2" },
		},
		{
			"conflict",
			func(f *front, alice caller) string {
				go func() { f.post("k", all(alice, with("X-Block", "1"))) }()
				<-f.up.entered
				return ""
			},
			func(f *front, _ string, as caller) answer { return f.post("k", as) },
			func(a answer) bool { return a.Code == 409 && a.problem() == "in-progress" },
			func(a answer) bool { return a.Code == 200 && a.Body.String() == "effect 2" },
		},
		{
			"status",
			func(f *front, alice caller) string {
				f.post("k", alice)
				list, err := f.store.Store.List(t.Context(), semel.Filter{})
				noError(f.t, err)
				return "/.well-known/idempotency/operations/" + list[0].ID
			},
			func(f *front, left string, as caller) answer {
				return f.do("GET", "http://api.example"+left, "", "", as)
			},
			func(a answer) bool { return a.Code == 200 && strings.Contains(a.Body.String(), `"completed"`) },
			func(a answer) bool { return a.Code == 404 },
		},
		{
			"result",
			func(f *front, alice caller) string {
				f.post("k", alice)
				list, err := f.store.Store.List(t.Context(), semel.Filter{})
				noError(f.t, err)
				return "/.well-known/idempotency/operations/" + list[0].ID + "/result"
			},
			func(f *front, left string, as caller) answer {
				return f.do("GET", "http://api.example"+left, "", "", as)
			},
			func(a answer) bool { return a.Code == 200 && a.Body.String() == "effect 1" },
			func(a answer) bool { return a.Code == 404 },
		},
		{
			"issued key",
			func(f *front, alice caller) string {
				a := f.do("POST", "http://api.example/.well-known/idempotency/keys", "", `{"operation":"POST /orders"}`, alice)
				var issued struct{ Key string }
				noError(f.t, json.Unmarshal(a.Body.Bytes(), &issued))
				if issued.Key == "" {
					f.t.Fatalf("no key was issued: %d %s", a.Code, a.Body)
				}
				return issued.Key
			},
			func(f *front, key string, as caller) answer { return f.post(key, as) },
			func(a answer) bool { return a.Code == 200 && !a.replayed() },
			func(a answer) bool { return a.Code == 400 && a.problem() == "key-not-issued" },
		},
		{
			"issuing",
			func(*front, caller) string { return "" },
			func(f *front, _ string, as caller) answer {
				return f.do("POST", "http://api.example/.well-known/idempotency/keys", "", `{"operation":"POST /orders"}`, as)
			},
			func(a answer) bool { return a.Code == 201 || a.Code == 200 },
			func(a answer) bool { return a.Code == 201 || a.Code == 200 },
		},
	}
	cells := 0
	for _, s := range subjects(t) {
		for _, way := range ways {
			up := newUpstream(t)
			cell := func(who string, as caller, ok func(a answer) bool, refusal int) {
				if as == nil {
					return
				}
				cells++
				t.Run(s.name+"/"+way.name+"/"+who, func(t *testing.T) {
					up.effects.Store(0)
					f := newFront(t, up, s.source)
					left := way.prepare(f, s.alice)
					var a answer
					if refusal != 0 {
						a = f.untouched(who, func() answer { return way.try(f, left, as) })
						ok = func(a answer) bool {
							return a.Code == refusal && strings.Contains(a.Body.String(), "Nothing was executed.") && a.Header().Get("Location") == ""
						}
					} else {
						a = way.try(f, left, as)
					}
					if !ok(a) {
						t.Errorf("status %d, replayed %t, body %s", a.Code, a.replayed(), a.Body)
					}
					if way.name == "conflict" {
						up.leave <- struct{}{}
					}
				})
			}
			cell("same", s.alice, way.own, 0)
			cell("renewed", s.renewed, way.own, 0)
			cell("another", s.bob, way.other, 0)
			cell("another tenant", s.otherTenant, way.other, 0)
			for who, r := range s.refused {
				cell(who, r.as, nil, r.status)
			}
		}
	}
	t.Logf("%d cells", cells)
}

// BenchmarkIdentify is what a source costs for a caller who comes again.
func BenchmarkIdentify(b *testing.B) {
	for _, s := range subjects(b) {
		b.Run(s.name, func(b *testing.B) {
			r := httptest.NewRequest("POST", "http://api.example/orders", nil)
			s.alice(r)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.source.Identify(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
