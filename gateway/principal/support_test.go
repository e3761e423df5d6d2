package principal

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// counted is a store that counts what it is asked.
type counted struct {
	*memory.Store
	calls atomic.Int64
}

func (c *counted) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c.calls.Add(1)
	return c.Store.Begin(ctx, a)
}

func (c *counted) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	c.calls.Add(1)
	return c.Store.Find(ctx, id)
}

func (c *counted) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	c.calls.Add(1)
	return c.Store.List(ctx, f)
}

// upstream is a service that counts its effects. It is made outside of a
// synctest bubble, in which connections would keep time from passing.
type upstream struct {
	url     *url.URL
	effects atomic.Int64
	entered chan struct{} // a request with X-Block is in the handler
	leave   chan struct{} // and may leave it
	headers chan http.Header
}

func newUpstream(t testing.TB) *upstream {
	t.Helper()
	u := &upstream{entered: make(chan struct{}), leave: make(chan struct{}), headers: make(chan http.Header, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case u.headers <- r.Header:
		default:
		}
		n := u.effects.Add(1)
		if r.Header.Get("X-Block") != "" {
			u.entered <- struct{}{}
			<-u.leave
		}
		w.Header().Set("Connection", "close")
		_, _ = fmt.Fprintf(w, "effect %d", n)
	}))
	t.Cleanup(server.Close)
	var err error
	u.url, err = url.Parse(server.URL)
	noError(t, err)
	return u
}

// front is a gateway before an upstream, with a store that counts.
type front struct {
	t       testing.TB
	up      *upstream
	store   *counted
	handler http.Handler
}

func newFront(t testing.TB, up *upstream, s Source) *front {
	t.Helper()
	mem, err := memory.New(memory.Config{})
	noError(t, err)
	f := &front{t: t, up: up, store: &counted{Store: mem}}
	guard, err := semel.New(semel.Config{Store: f.store})
	noError(t, err)
	keys, err := semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: [][]byte{bytes.Repeat([]byte{7}, 32)}, Retention: 24 * time.Hour})
	noError(t, err)
	gw, err := gateway.New(gateway.Config{Upstream: up.url, Guard: guard, Scope: Scope(s), Keys: keys, SpoolDir: t.TempDir(), IdleTimeout: time.Millisecond})
	noError(t, err)
	t.Cleanup(func() { noError(t, gw.Drain(context.Background())) })
	f.handler = Clean(s, gw)
	return f
}

// caller makes a request somebody's.
type caller func(r *http.Request)

// bearer is a caller with a token.
func bearer(token string) caller {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

type answer struct {
	*httptest.ResponseRecorder
}

func (a answer) replayed() bool { return a.Header().Get("Idempotency-Replayed") == "true" }

// problem is what the type of the problem ends with; empty if it is none.
func (a answer) problem() string {
	var p struct{ Type string }
	_ = json.Unmarshal(a.Body.Bytes(), &p)
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

// do sends a request. key may be empty.
func (f *front) do(method, path, key, body string, as ...caller) answer {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, path, content)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, c := range as {
		c(r)
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return answer{w}
}

func (f *front) post(key string, as ...caller) answer {
	return f.do("POST", "http://api.example/orders", key, `{"n":1}`, as...)
}

// untouched runs do and checks that the store was asked nothing and the upstream
// got nothing.
func (f *front) untouched(what string, do func() answer) answer {
	f.t.Helper()
	calls, effects := f.store.calls.Load(), f.up.effects.Load()
	a := do()
	if c, e := f.store.calls.Load()-calls, f.up.effects.Load()-effects; c != 0 || e != 0 {
		f.t.Errorf("%s: %d calls of the store and %d effects, want none", what, c, e)
	}
	return a
}

// signer signs tokens with one key.
type signer struct {
	kid string
	alg jose.SignatureAlgorithm
	key crypto.Signer
}

func newSigner(t testing.TB, kid string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	return &signer{kid, jose.ES256, key}
}

func (s *signer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.key.Public(), KeyID: s.kid, Use: "sig", Algorithm: string(s.alg)}
}

// token signs claims, which are those of a good token with changes. A change to
// nil takes a claim away.
func (s *signer) token(t testing.TB, changes map[string]any) string {
	t.Helper()
	return s.sign(t, goodClaims(changes), nil)
}

func (s *signer) sign(t testing.TB, claims any, header map[jose.HeaderKey]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if s.kid != "" {
		options.WithHeader("kid", s.kid)
	}
	for name, v := range header {
		options.WithHeader(name, v)
	}
	js, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.key}, options)
	noError(t, err)
	token, err := jwt.Signed(js).Claims(claims).Serialize()
	noError(t, err)
	return token
}

const (
	testIssuer   = "https://issuer.example"
	testAudience = "orders"
)

func goodClaims(changes map[string]any) map[string]any {
	claims := map[string]any{
		"iss": testIssuer, "aud": testAudience, "sub": "alice", "org": "acme",
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "jti": semel.NewKey(),
	}
	for name, v := range changes {
		claims[name] = v
		if v == nil {
			delete(claims, name)
		}
	}
	return claims
}

// issuer is where keys are published, behind a RoundTripper.
type issuer struct {
	mu     sync.Mutex
	keys   []jose.JSONWebKey
	header http.Header
	status int
	err    error
	raw    []byte
	delay  time.Duration
	asked  int
	times  []time.Time
}

func (i *issuer) publish(signers ...*signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = nil
	for _, s := range signers {
		i.keys = append(i.keys, s.public())
	}
}

// set changes the issuer in order.
func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	i.asked++
	i.times = append(i.times, time.Now())
	delay, err, status, header, body := i.delay, i.err, i.status, i.header.Clone(), i.raw
	if body == nil {
		body, _ = json.Marshal(jose.JSONWebKeySet{Keys: i.keys})
	}
	i.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if err != nil {
		return nil, err
	}
	if status == 0 {
		status = 200
	}
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

func newJWT(t testing.TB, i *issuer, change func(*JWTConfig)) *JWT {
	t.Helper()
	c := JWTConfig{
		Issuer: testIssuer, Audiences: []string{testAudience}, Algorithms: []string{"ES256"}, Tenant: "org",
		KeysURL: "https://issuer.example/keys", Transport: i,
	}
	if change != nil {
		change(&c)
	}
	s, err := NewJWT(c)
	noError(t, err)
	return s
}

// judge is an auth endpoint, behind a RoundTripper.
type judge struct {
	mu    sync.Mutex
	says  func(r *http.Request) (status int, header http.Header)
	err   error
	delay time.Duration
	asked int
	now   int // under way
	most  int
	seen  *http.Request
}

func (j *judge) RoundTrip(r *http.Request) (*http.Response, error) {
	j.mu.Lock()
	j.asked++
	j.seen = r
	j.now++
	j.most = max(j.most, j.now)
	delay, err := j.delay, j.err
	// It decides at once and answers later.
	status, header := 500, http.Header(nil)
	if j.says != nil {
		status, header = j.says(r)
	}
	j.mu.Unlock()
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.now--
	}()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if err != nil {
		return nil, err
	}
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: r}, nil
}

func (j *judge) set(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
}

func (j *judge) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked
}

// known lets pass whoever is in the map, from credential to subject and tenant.
func known(callers map[string][2]string) func(*http.Request) (int, http.Header) {
	return func(r *http.Request) (int, http.Header) {
		c, ok := callers[r.Header.Get("Authorization")]
		if !ok {
			return 401, http.Header{"Www-Authenticate": {`Custom realm="orders"`}}
		}
		return 200, http.Header{"X-Auth-Subject": {c[0]}, "X-Auth-Tenant": {c[1]}}
	}
}

func newEndpoint(t testing.TB, j *judge, change func(*EndpointConfig)) *Endpoint {
	t.Helper()
	c := EndpointConfig{
		URL: "https://auth.example/check", Credentials: []string{"authorization"},
		Subject: "X-Auth-Subject", Tenant: "X-Auth-Tenant", Transport: j,
	}
	if change != nil {
		change(&c)
	}
	e, err := NewEndpoint(c)
	noError(t, err)
	return e
}

// certificate makes a client's certificate. key may be nil for a new one.
func certificate(t testing.TB, key *ecdsa.PrivateKey, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	if key == nil {
		var err error
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		noError(t, err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	noError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{Organization: []string{"Acme"}, CommonName: "alice"},
		URIs:    []*url.URL{{Scheme: "spiffe", Host: "acme.example", Path: "/alice"}},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	noError(t, err)
	cert, err := x509.ParseCertificate(der)
	noError(t, err)
	return cert
}

// trusted is a network of proxies, and fromProxy a request from there.
var trusted = Proxies{From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}}

func from(addr string) caller { return func(r *http.Request) { r.RemoteAddr = addr } }

func with(name string, values ...string) caller {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func all(callers ...caller) caller {
	return func(r *http.Request) {
		for _, c := range callers {
			c(r)
		}
	}
}
