package principal

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/gateway/internal/spelling"
	"github.com/semelhq/semel/semelhttp"
)

// TestConfigs: one error names everything that is wrong.
func TestConfigs(t *testing.T) {
	bad := Proxies{From: []netip.Prefix{{}, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::ffff:10.0.0.0/104"), netip.MustParsePrefix("10.1.2.3/8")}}
	badProxies := []string{"invalid network", "trusts everybody", "IPv4 network", "is an address in 10.0.0.0/8"}
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"empty JWT": {second(NewJWT(JWTConfig{})), []string{"Issuer", "Audiences", "Algorithms", "exactly one of the fields KeysURL and KeysFile"}},
		"JWT": {
			second(NewJWT(JWTConfig{
				Issuer: "a b", Audiences: []string{""}, Algorithms: []string{"HS256", "none", "RS256"}, Header: "Host", Leeway: time.Hour,
				KeysURL: "http://issuer.example/keys", KeysMaxAge: time.Second, KeysKeep: 48 * time.Hour, KeysTimeout: time.Hour,
			})),
			[]string{`Issuer is "a b"`, "Audiences", `"HS256"`, `"none"`, "Header", "Leeway", "KeysURL is http to another machine", "KeysMaxAge", "KeysKeep", "KeysTimeout"},
		},
		"JWT by two ways": {second(NewJWT(JWTConfig{KeysURL: "https://a", KeysFile: "b"})), []string{"exactly one"}},
		"JWT by no file": {
			second(NewJWT(JWTConfig{KeysFile: filepath.Join(t.TempDir(), "none"), Transport: panics{}})),
			[]string{"KeysFile", "Transport is set"},
		},
		"JWT by odd URL":  {second(NewJWT(JWTConfig{KeysURL: "https://user:s3cret@a/#x"})), []string{"holds a user name"}},
		"JWT by no URL":   {second(NewJWT(JWTConfig{KeysURL: "https://a b/"})), []string{"is not a URL"}},
		"JWT by FTP":      {second(NewJWT(JWTConfig{KeysURL: "ftp://a/"})), []string{"has no scheme and host"}},
		"empty MTLS":      {second(NewMTLS(MTLSConfig{})), []string{`Name is ""`}},
		"MTLS":            {second(NewMTLS(MTLSConfig{Name: "serial", Proxies: bad})), append(badProxies, `Name is "serial"`)},
		"empty Endpoint":  {second(NewEndpoint(EndpointConfig{})), []string{"URL", "Subject", "Credentials"}},
		"Endpoint":        {second(NewEndpoint(EndpointConfig{URL: "http://auth.example", Credentials: []string{"X-Forwarded-For", "Connection", "x_user"}, Subject: "X-User", Tenant: "x-user", Proxies: bad, Timeout: time.Hour, CacheFor: time.Hour, MaxCalls: -1})), append(badProxies, "use https", `"X-Forwarded-For"`, `"Connection"`, `"x_user", which the endpoint says`, "same header", "Timeout", "CacheFor", "MaxCalls")},
		"empty Header":    {second(NewHeader(HeaderConfig{})), []string{"Proxies", "Subject"}},
		"Header":          {second(NewHeader(HeaderConfig{Subject: "X-A", Tenant: "x-a", Proxies: bad})), append(badProxies, "same header")},
		"Header, strange": {second(NewHeader(HeaderConfig{Subject: "a b", Tenant: "Idempotency-Key", Proxies: trusted})), []string{`"a b"`, "is the key itself"}},
		"empty Digest":    {second(NewDigest(DigestConfig{})), []string{"exactly one"}},
		"Digest":          {second(NewDigest(DigestConfig{Headers: []string{"Host"}, Cookie: "a b", Challenge: "a\nb"})), []string{"exactly one", `"Host"`, "Cookie", "Challenge"}},
	} {
		if tt.err == nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(tt.err.Error(), part) {
				t.Errorf("%s: the error does not tell of %s: %v", name, part, tt.err)
			}
		}
		if strings.Contains(tt.err.Error(), "s3cret") {
			t.Errorf("%s: the error holds a secret: %v", name, tt.err)
		}
	}
	for _, u := range []string{"http://localhost:9000/keys", "http://127.0.0.1/", "http://[::1]:80/x", "https://issuer.example/keys?p=1"} {
		_, err := NewJWT(JWTConfig{Issuer: "i", Audiences: []string{"a"}, Algorithms: []string{"RS256"}, KeysURL: u})
		noError(t, err)
	}
	_, err := NewEndpoint(EndpointConfig{URL: "http://auth.internal:9091/check", AllowHTTP: true, Credentials: []string{"Cookie"}, Subject: "X-User"})
	noError(t, err)
}

func second[T any](s T, err error) error {
	if err != nil && !reflect.ValueOf(&s).Elem().IsZero() {
		panic("a source came with an error")
	}
	return err
}

// TestConfigsAreCopied: what a program does to its config later changes nothing.
func TestConfigsAreCopied(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	h, err := NewHeader(HeaderConfig{Subject: "X-User", Proxies: Proxies{From: networks}})
	noError(t, err)
	one := newSigner(t, "one")
	i := &issuer{}
	i.publish(one)
	audiences, algorithms := []string{testAudience}, []string{"ES256"}
	j := newJWT(t, i, func(c *JWTConfig) { c.Audiences, c.Algorithms = audiences, algorithms })
	networks[0], audiences[0], algorithms[0] = netip.MustParsePrefix("192.0.0.0/16"), "x", "x"
	_, err = identify(h, all(from("10.1.0.1:1"), with("X-User", "alice")))
	noError(t, err)
	_, err = identify(j, bearer(one.token(t, nil)))
	noError(t, err)
}

// TestEmptyPrincipal: whoever makes a source can forget to name the caller.
func TestEmptyPrincipal(t *testing.T) {
	up := newUpstream(t)
	f := newFront(t, up, broken{})
	want(t, "nameless", f.untouched("nameless", func() answer { return f.post("k") }).Code, 403)
	f = newFront(t, up, PerHost(broken{}))
	want(t, "nameless per host", f.untouched("nameless", func() answer { return f.post("k") }).Code, 403)
	f = newFront(t, up, PerHost(Shared{}))
	want(t, "shared", f.post("k").Code, 200)
	want(t, "shared, again", f.post("k").replayed(), true)
	want(t, "shared, of another host", f.post("k", func(r *http.Request) { r.Host = "other.example" }).replayed(), false)
	want(t, "shared, of a host that is too long", f.post("k", func(r *http.Request) { r.Host = strings.Repeat("a", 256) }).Code, 400)
}

type broken struct{}

func (broken) Identify(*http.Request) (Principal, error) { return Principal{Tenant: "acme"}, nil }

// TestDigestIsTheGateways: a gateway with flags alone and one with this source
// know callers by the same names.
func TestDigestIsTheGateways(t *testing.T) {
	d, err := NewDigest(DigestConfig{Headers: []string{"X-Api-Key", "authorization"}})
	noError(t, err)
	p, err := identify(d, all(bearer("a"), with("X-Api-Key", "b")))
	noError(t, err)
	actor, err := semelhttp.CredentialActor("Authorization", "X-Api-Key")
	noError(t, err)
	want(t, "actor", p.Actor, actor(http.Header{"Authorization": {"Bearer a"}, "X-Api-Key": {"b"}}))
	c, err := NewDigest(DigestConfig{Cookie: "session"})
	noError(t, err)
	for _, value := range []string{"s3cret", `"s3cret"`} {
		p, err = identify(c, with("Cookie", "session="+value))
		noError(t, err)
		want(t, "actor of a cookie", p.Actor, "4cfbc4c631cc713d06ff48ab33d2259c")
	}
}

func TestClient(t *testing.T) {
	both := Proxies{From: trusted.From, Unix: true}
	for _, tt := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"no proxy", "203.0.113.5:1", nil, "203.0.113.5"},
		{"a stranger's word", "203.0.113.5:1", []string{"192.0.2.7"}, "203.0.113.5"},
		{"a proxy that says nothing", "10.1.0.1:1", nil, "10.1.0.1"},
		{"a proxy", "10.1.0.1:1", []string{"192.0.2.7"}, "192.0.2.7"},
		{"what the client invented", "10.1.0.1:1", []string{"127.0.0.1, 10.1.0.2, 192.0.2.7"}, "192.0.2.7"},
		{"two proxies", "10.1.0.1:1", []string{"9.9.9.9, 192.0.2.7 ,10.1.0.2"}, "192.0.2.7"},
		{"lines", "10.1.0.1:1", []string{"9.9.9.9", "192.0.2.7", "10.1.0.2"}, "192.0.2.7"},
		{"proxies alone", "10.1.0.1:1", []string{"10.1.0.3, 10.1.0.2"}, "10.1.0.3"},
		{"with port", "10.1.0.1:1", []string{"192.0.2.7:4711"}, "192.0.2.7"},
		{"of version 6", "[fd00::1]:1", []string{"2001:db8::1"}, "2001:db8::1"},
		{"of version 6 with port", "[fd00::1]:1", []string{"[2001:db8::1]:4711"}, "2001:db8::1"},
		{"of version 6 in brackets", "[fd00::1]:1", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"of version 4 in 6", "[::ffff:10.1.0.1]:1", []string{"::ffff:192.0.2.7"}, "192.0.2.7"},
		{"a proxy that does not know", "10.1.0.1:1", []string{"192.0.2.7, unknown"}, "10.1.0.1"},
		{"a hop that does not know", "10.1.0.1:1", []string{"192.0.2.7, unknown, 10.1.0.2"}, "10.1.0.2"},
		{"empty", "10.1.0.1:1", []string{""}, "10.1.0.1"},
		{"a comma more", "10.1.0.1:1", []string{"192.0.2.7,"}, "10.1.0.1"},
		{"commas", "10.1.0.1:1", []string{strings.Repeat(",", 60_000)}, "10.1.0.1"},
		{"no address", "@", []string{"192.0.2.7"}, "invalid IP"},
		{"an address with a zone", "[fd00::1%eth0]:1", []string{"192.0.2.7"}, "fd00::1%eth0"},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.RemoteAddr = tt.peer
		r.Header["X-Forwarded-For"] = tt.forwarded
		want(t, tt.name, both.Client(r).String(), tt.want)
	}
	// A unix socket is known by the socket, not by what stands for an address.
	r := httptest.NewRequest("POST", "/", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "/run/x", Net: "unix"}))
	r.RemoteAddr = "@"
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	want(t, "over a unix socket", both.Client(r).String(), "192.0.2.7")
	want(t, "over a unix socket that is not trusted", trusted.Client(r).String(), "invalid IP")
	r.RemoteAddr = "10.1.0.1:1"
	want(t, "over a unix socket, with an address", trusted.Trusts(r), false)
}

// TestClean: an upstream behind the gateway sees of such headers what a trusted
// proxy said, in that spelling alone, whether the request is protected or not.
func TestClean(t *testing.T) {
	header, err := NewHeader(HeaderConfig{Subject: "X-User", Tenant: "X-Org", Proxies: trusted})
	noError(t, err)
	direct, err := NewMTLS(MTLSConfig{Name: CertificateURI})
	noError(t, err)
	digest, err := NewDigest(DigestConfig{Headers: []string{"Authorization"}})
	noError(t, err)
	endpoint := newEndpoint(t, &judge{}, func(c *EndpointConfig) { c.Subject, c.Tenant = "X-User", "X-Org" })
	spellings := http.Header{
		"X-User": {"a"}, "X_user": {"b"}, "X_User": {"b"}, "x-user": {"c"}, "X.user": {"d"}, "X-Org": {"e"}, "X~Org": {"f"}, "X-Users": {"g"}, "Xuser": {"h"},
		"Client-Cert": {"i"}, "Client_cert_chain": {"j"}, "Authorization": {"k"},
	}
	for _, tt := range []struct {
		name   string
		source Source
		peer   string
		want   string
	}{
		{"header, stranger", header, "203.0.113.5:1", "Authorization Client-Cert Client_cert_chain X-Users Xuser"},
		{"header, proxy", header, "10.1.0.1:1", "Authorization Client-Cert Client_cert_chain X-Org X-User X-Users Xuser"},
		{"header per host", PerHost(header), "203.0.113.5:1", "Authorization Client-Cert Client_cert_chain X-Users Xuser"},
		{"endpoint", endpoint, "10.1.0.1:1", "Authorization Client-Cert Client_cert_chain X-Users Xuser"},
		{"mtls", direct, "10.1.0.1:1", "Authorization X-Org X-User X-Users X.user X_User X_user Xuser X~Org x-user"},
		{"digest", digest, "203.0.113.5:1", "Authorization Client-Cert Client_cert_chain X-Org X-User X-Users X.user X_User X_user Xuser X~Org x-user"},
	} {
		var names []string
		handler := Clean(tt.source, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for name := range r.Header {
				names = append(names, name)
			}
			if tt.source == Source(header) {
				want(t, tt.name+": trailers", len(r.Trailer), 1)
			}
		}))
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.peer
		r.Header = spellings.Clone()
		r.Trailer = http.Header{"X-User": nil, "X_org": nil, "X-Sum": nil}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		want(t, tt.name, strings.Join(sorted(names), " "), tt.want)
		want(t, tt.name+": the server's own header", len(r.Header), len(spellings))
	}
	r := httptest.NewRequest("GET", "/", nil)
	all(from("10.1.0.1:1"), with("X-User", "alice"), with("Connection", "keep-alive, x-USER", "X_Org,close"))(r)
	Clean(header, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		want(t, "what Connection names", fmt.Sprint(r.Header["Connection"]), "[keep-alive close]")
	})).ServeHTTP(httptest.NewRecorder(), r)
}

// TestRefusedBeforeTheBody: who waits for leave to send a body is told at once
// that there is none.
func TestRefusedBeforeTheBody(t *testing.T) {
	up := newUpstream(t)
	digest, err := NewDigest(DigestConfig{Headers: []string{"Authorization"}, Challenge: "Bearer"})
	noError(t, err)
	f := newFront(t, up, digest)
	server := httptest.NewServer(f.handler)
	defer server.Close()
	f.untouched("refused", func() answer {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		noError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
		noError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n')
		noError(t, err)
		want(t, "the first line", strings.TrimSpace(line), "HTTP/1.1 401 Unauthorized")
		return answer{}
	})
}

// TestForwardedOnTheWire: behind a gateway that keeps what proxies say of
// forwarding, the upstream gets it of the trusted ones alone.
func TestForwardedOnTheWire(t *testing.T) {
	for proxy, expected := range map[string]string{
		"127.0.0.1/32": "Forwarded: for=192.0.2.7; X-Forwarded-For: 192.0.2.7, 127.0.0.1; X-Forwarded-Host: shop.example; X-Forwarded-Proto: https",
		"192.0.2.0/24": "X-Forwarded-For: 127.0.0.1; X-Forwarded-Host: a; X-Forwarded-Proto: http",
	} {
		up := newUpstream(t)
		guard, err := semel.New(semel.Config{Store: newFront(t, up, Shared{}).store})
		noError(t, err)
		gw, err := gateway.New(gateway.Config{Upstream: up.url, Guard: guard, TrustForwarded: true})
		noError(t, err)
		proxies := Proxies{From: []netip.Prefix{netip.MustParsePrefix(proxy)}}
		server := httptest.NewServer(proxies.Clean(gw))
		conn, err := net.Dial("tcp4", server.Listener.Addr().String())
		noError(t, err)
		_, err = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: a\r\nConnection: close, Forwarded, X-Forwarded-For\r\nForwarded: for=192.0.2.7\r\nX-Forwarded-For: 192.0.2.7\r\n"+
			"X_Forwarded_For: 9.9.9.9\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Proto: https\r\nX.Forwarded.Proto: https\r\nContent-Length: 0\r\n\r\n")
		noError(t, err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		noError(t, err)
		want(t, "status", res.StatusCode, 200)
		var got []string
		for name, values := range <-up.headers {
			if strings.Contains(strings.ToLower(name), "forwarded") {
				got = append(got, name+": "+strings.Join(values, ", "))
			}
		}
		want(t, "from "+proxy, strings.Join(sorted(got), "; "), expected)
		_ = conn.Close()
		server.Close()
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// TestIdentityHeadersOnTheWire sends spellings through a real server, gateway and
// upstream, in requests that are protected and that are not.
func TestIdentityHeadersOnTheWire(t *testing.T) {
	for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
		for _, proxy := range []string{"127.0.0.1/32", "192.0.2.0/24"} {
			header, err := NewHeader(HeaderConfig{Subject: "X-User", Proxies: Proxies{From: []netip.Prefix{netip.MustParsePrefix(proxy)}}})
			noError(t, err)
			up := newUpstream(t)
			server := httptest.NewServer(newFront(t, up, header).handler)
			conn, err := net.Dial("tcp4", server.Listener.Addr().String())
			noError(t, err)
			_, err = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: a\r\nConnection: close, x-user\r\nX-User: alice\r\nX_User: root\r\nx_user: root\r\nX.User: root\r\n"+key+"Content-Length: 2\r\n\r\n{}")
			noError(t, err)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			noError(t, err)
			trusts := proxy == "127.0.0.1/32"
			if key != "" && !trusts {
				want(t, "a stranger's status", res.StatusCode, 403)
			} else {
				want(t, "status", res.StatusCode, 200)
				var got []string
				for name, values := range <-up.headers {
					if spelling.OneOf(name, []string{"X-User"}) {
						got = append(got, name+": "+strings.Join(values, ", "))
					}
				}
				said := ""
				if trusts {
					said = "X-User: alice"
				}
				want(t, "what the upstream got from "+proxy, strings.Join(got, "; "), said)
			}
			_ = conn.Close()
			server.Close()
		}
	}
}

// TestMTLSByTLS: with a real handshake, and a certificate that expires on an
// open connection.
func TestMTLSByTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	ca := certificate(t, key, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	issue := func(by *x509.Certificate, byKey *ecdsa.PrivateKey) tls.Certificate {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		noError(t, err)
		template := certificate(t, own, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
		der, err := x509.CreateCertificate(rand.Reader, template, by, own.Public(), byKey)
		noError(t, err)
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	}
	source, err := NewMTLS(MTLSConfig{Name: CertificateURI})
	noError(t, err)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	up := newUpstream(t)
	server := httptest.NewUnstartedServer(newFront(t, up, source).handler)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, ClientCAs: pool}
	server.StartTLS()
	defer server.Close()
	verifying := httptest.NewUnstartedServer(newFront(t, up, source).handler)
	verifying.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	verifying.StartTLS()
	defer verifying.Close()
	send := func(s *httptest.Server, cert ...tls.Certificate) (int, bool) {
		client := s.Client()
		transport := client.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig.Certificates = cert
		defer transport.CloseIdleConnections()
		r, err := http.NewRequest("POST", s.URL+"/orders", strings.NewReader("{}"))
		noError(t, err)
		r.Header.Set("Idempotency-Key", "k")
		res, err := transport.RoundTrip(r)
		if err != nil {
			return 0, false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode, res.Header.Get("Idempotency-Replayed") == "true"
	}
	code, _ := send(verifying, issue(ca, key))
	want(t, "verified", code, 200)
	code, replayed := send(verifying, issue(ca, key))
	want(t, "renewed", fmt.Sprint(code, replayed), "200 true")
	code, _ = send(verifying)
	want(t, "without", code, 401)
	self := certificate(t, other, nil)
	code, _ = send(verifying, issue(self, other))
	want(t, "of another authority", code, 0)
	code, _ = send(server, issue(ca, key))
	want(t, "where nothing is verified", code, 401)

	synctest.Test(t, func(t *testing.T) {
		cert := certificate(t, nil, nil)
		as := func(r *http.Request) { r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}} }
		_, err := identify(source, as)
		noError(t, err)
		time.Sleep(time.Until(cert.NotAfter) + time.Second)
		_, err = identify(source, as)
		want(t, "expired meanwhile", status(t, err), 401)
	})
}

// TestActorNames pins names: a change would free every key in use. Those of
// tokens and of most certificates are pinned where these are tested.
func TestActorNames(t *testing.T) {
	header, err := NewHeader(HeaderConfig{Subject: "X-User", Tenant: "X-Org", Proxies: trusted})
	noError(t, err)
	p, err := identify(header, all(from("10.1.0.1:1"), with("X-User", " alice "), with("X-Org", "acme")))
	noError(t, err)
	want(t, "header", p, Principal{Actor: "user:alice", Tenant: "acme"})
	p, err = identify(header, all(from("10.1.0.1:1"), with("X-User", strings.Repeat("a", 251)), with("X-Org", "acme")))
	noError(t, err)
	want(t, "header that is too long", p, Principal{Actor: "user-digest:02e3e64caa334fd13999de419d94878a", Tenant: "acme"})
	key, err := NewMTLS(MTLSConfig{Name: CertificateKey})
	noError(t, err)
	cert := certificate(t, nil, nil)
	p, err = identify(key, func(r *http.Request) { r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}} })
	noError(t, err)
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	want(t, "key", p.Actor, "spki:"+hex.EncodeToString(sum[:]))
}

// TestCertificateNames: no two subjects have one name, and what is no name is
// refused.
func TestCertificateNames(t *testing.T) {
	as := func(name CertificateName, change func(*x509.Certificate)) (Principal, error) {
		s, err := NewMTLS(MTLSConfig{Name: name})
		noError(t, err)
		cert := certificate(t, nil, change)
		return identify(s, func(r *http.Request) {
			r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}
		})
	}
	p, err := as(CertificateSubject, nil)
	noError(t, err)
	want(t, "dn", p.Actor, "dn:CN=alice,O=Acme")
	p, err = as(CertificateURI, nil)
	noError(t, err)
	want(t, "uri", p.Actor, "uri:spiffe://acme.example/alice")
	seen := map[string]int{}
	for n, subject := range []pkix.Name{
		{CommonName: "alice"},
		{CommonName: "alice,O=Acme"},
		{CommonName: "alice", Organization: []string{"Acme"}},
		{CommonName: "alice", Organization: []string{"Acme", "Other"}},
		{CommonName: "alice", Organization: []string{"Acme,O=Other"}},
		{CommonName: "alice", SerialNumber: "1"},
		{ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 2, 3}, Value: "alice"}}},
		{ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "Acme"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "alice"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "Acme"}}},
	} {
		p, err := as(CertificateSubject, func(c *x509.Certificate) { c.Subject = subject })
		noError(t, err)
		if before, ok := seen[p.Actor]; ok {
			t.Errorf("the subjects %d and %d are both %s", before, n, p.Actor)
		}
		seen[p.Actor] = n
	}
	for name, change := range map[string]func(*x509.Certificate){
		"no URI":   func(c *x509.Certificate) { c.URIs = nil },
		"two URIs": func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "b"}) },
	} {
		_, err := as(CertificateURI, change)
		want(t, name, status(t, err), 403)
	}
	for name, subject := range map[string]pkix.Name{
		"empty": {},
		"blank": {CommonName: " "},
	} {
		_, err := as(CertificateSubject, func(c *x509.Certificate) { c.Subject = subject })
		want(t, name+" subject", status(t, err), 403)
	}
}
