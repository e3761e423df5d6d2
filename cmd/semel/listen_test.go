package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	return key
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := newKey(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	noError(t, err)
	c, err = x509.ParseCertificate(der)
	noError(t, err)
	return &authority{c, key}
}

// issue returns a certificate and its key in PEM, for 127.0.0.1 and clients.
func (a *authority) issue(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	key := newKey(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	noError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	noError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// greets is a client's handshake with what f serves; the name is the server's.
func greets(t *testing.T, f *certFiles, client *tls.Config) (name string, err error) {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	served := make(chan error, 1)
	go func() {
		server := tls.Server(far, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: f.current})
		served <- server.Handshake()
		_ = server.Close()
	}()
	c := tls.Client(near, client)
	if err := c.Handshake(); err != nil {
		_ = near.Close()
		<-served
		return "", err
	}
	_, _ = c.Read(make([]byte, 1)) // with TLS 1.3 a refusal comes behind the handshake
	_ = near.Close()
	if err := <-served; err != nil {
		return "", err
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// A certificate, its key and the authority of clients are loaded again when they
// change. What cannot be loaded is told once, and the former ones stay.
func TestCertificatesAreLoadedAgain(t *testing.T) {
	dir := t.TempDir()
	servers, clients, others := newAuthority(t, "servers"), newAuthority(t, "clients"), newAuthority(t, "others")
	clock := time.Now()
	var told []string
	f := &certFiles{
		cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), clientCA: filepath.Join(dir, "ca.pem"),
		failed: func(err error) { told = append(told, err.Error()) }, now: func() time.Time { return clock },
	}
	stamp := clock.Add(-time.Hour)
	write := func(path string, text []byte) {
		t.Helper()
		noError(t, os.WriteFile(path, text, 0o600))
		stamp = stamp.Add(time.Second) // whatever the file system's clock can tell apart
		noError(t, os.Chtimes(path, stamp, stamp))
	}
	cert, key := servers.issue(t, "first")
	write(f.cert, cert)
	write(f.key, key)
	write(f.clientCA, clients.pem())
	noError(t, f.load())

	pair := func(a *authority) *tls.Config {
		certPEM, keyPEM := a.issue(t, "client")
		c, err := tls.X509KeyPair(certPEM, keyPEM)
		noError(t, err)
		return &tls.Config{RootCAs: servers.pool(), ServerName: "127.0.0.1", ClientSessionCache: tls.NewLRUClientSessionCache(4), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }}
	}
	known, stranger := pair(clients), pair(others)
	is := func(what, name string) {
		t.Helper()
		got, err := greets(t, f, known)
		noError(t, err)
		want(t, what, got, name)
	}
	is("the certificate", "first")
	if _, err := greets(t, f, stranger); err == nil {
		t.Error("a client of another authority was let in")
	}
	if _, err := greets(t, f, &tls.Config{RootCAs: servers.pool(), ServerName: "127.0.0.1"}); err == nil {
		t.Error("a client without a certificate was let in")
	}

	cert, key = servers.issue(t, "second")
	write(f.cert, cert) // and not yet its key
	is("within a second", "first")
	clock = clock.Add(lookEvery)
	is("with half of a pair", "first")
	clock = clock.Add(lookEvery)
	is("with half of a pair, later", "first")
	want(t, "how often it was told", len(told), 1)
	write(f.key, key)
	clock = clock.Add(lookEvery)
	is("with the other half", "second")

	write(f.clientCA, others.pem())
	clock = clock.Add(lookEvery)
	if _, err := greets(t, f, known); err == nil {
		t.Error("a client was let in whose authority was taken away")
	}
	if _, err := greets(t, f, stranger); err != nil {
		t.Errorf("a client of the new authority: %v", err)
	}
	noError(t, os.Remove(f.clientCA))
	clock = clock.Add(lookEvery)
	if _, err := greets(t, f, stranger); err != nil {
		t.Errorf("without the file of authorities, the former ones do not stay: %v", err)
	}
	want(t, "how often it was told in all", len(told), 2)
	for _, s := range told {
		if strings.Contains(s, "PRIVATE") {
			t.Errorf("told: %s", s)
		}
	}
}

// HTTP/1.1 and HTTP/2 are spoken with TLS, the latter in clear where that is asked
// for, and on Unix sockets as well.
func TestListening(t *testing.T) {
	dir := t.TempDir()
	servers := newAuthority(t, "servers")
	cert, key := servers.issue(t, "gateway")
	certFile, keyFile, socket := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "s")
	noError(t, os.WriteFile(certFile, cert, 0o600))
	noError(t, os.WriteFile(keyFile, key, 0o600))
	for _, c := range []struct {
		name   string
		l      listening
		http2  bool   // of the client
		answer string // empty if there is none
	}{
		{"clear", listening{Address: "127.0.0.1:0"}, false, "HTTP/1.1"},
		{"clear, HTTP/2 not allowed", listening{Address: "127.0.0.1:0"}, true, ""},
		{"clear, HTTP/2", listening{Address: "127.0.0.1:0", H2C: true}, true, "HTTP/2.0"},
		{"clear, both", listening{Address: "127.0.0.1:0", H2C: true}, false, "HTTP/1.1"},
		{"TLS", listening{Address: "127.0.0.1:0", Cert: certFile, Key: keyFile}, false, "HTTP/1.1"},
		{"TLS, HTTP/2", listening{Address: "127.0.0.1:0", Cert: certFile, Key: keyFile}, true, "HTTP/2.0"},
		{"socket", listening{Address: unixPrefix + socket}, false, "HTTP/1.1"},
		{"socket, HTTP/2", listening{Address: unixPrefix + socket, H2C: true}, true, "HTTP/2.0"},
		{"socket, TLS", listening{Address: unixPrefix + socket, Cert: certFile, Key: keyFile}, true, "HTTP/2.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := c.l.open(t.Context(), func(err error) { t.Error(err) })
			noError(t, err)
			server := &http.Server{Protocols: c.l.protocols(), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Proto)
			})}
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close(); <-served })
			speaks := new(http.Protocols)
			speaks.SetHTTP1(!c.http2)
			speaks.SetHTTP2(c.http2)
			speaks.SetUnencryptedHTTP2(c.http2)
			transport := &http.Transport{Protocols: speaks, TLSClientConfig: &tls.Config{RootCAs: servers.pool()}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, listener.Addr().Network(), listener.Addr().String())
			}}
			t.Cleanup(transport.CloseIdleConnections)
			scheme := "http"
			if c.l.encrypted() {
				scheme = "https"
			}
			got := ""
			if res, err := (&http.Client{Transport: transport}).Get(scheme + "://127.0.0.1/"); err == nil {
				body, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				got = string(body)
			} else if c.answer != "" {
				t.Error(err)
			}
			if c.answer != "" || strings.HasPrefix(got, "HTTP") {
				want(t, "the protocol", got, c.answer)
			}
		})
	}
}

// A socket that a killed process left is taken over; one in use is not, and
// neither is a file.
func TestSocketsLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listening{Address: unixPrefix + path}
	first, err := l.open(t.Context(), nil)
	noError(t, err)
	if _, err := l.open(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "is listening on") {
		t.Errorf("the second process: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	noError(t, first.Close())
	second, err := l.open(t.Context(), nil)
	noError(t, err)
	noError(t, second.Close())

	noError(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := l.open(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file: %v", err)
	}
	text, err := os.ReadFile(path)
	noError(t, err)
	want(t, "the file", string(text), "precious")
}

// A gateway by a file: TLS with certificates of clients, who are told apart by
// them, before an upstream that speaks HTTP/2 on a socket, with a listener for
// operators. A certificate that was renewed for the same name gets its replay; that
// of another name executes.
func TestServesTLSByFile(t *testing.T) {
	dir := t.TempDir()
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	put := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		noError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	certPEM, keyPEM := servers.issue(t, "gateway")
	socket := filepath.Join(dir, "orders.sock")
	listener, err := net.Listen("unix", socket)
	noError(t, err)
	var effects atomic.Int64
	upstream := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Saw", r.Proto+" "+r.Header.Get("X-Forwarded-Proto"))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, effects.Add(1))
	})}
	upstream.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = upstream.Serve(listener) }()
	t.Cleanup(func() { _ = upstream.Close() })
	file := put("gateway.yaml", fmt.Appendf(nil, `
version: 1
listen: 127.0.0.1:0
tls: {cert_file: %s, key_file: %s, client_ca_file: %s}
admin: {listen: "127.0.0.1:0"}
store: {url: "sqlite:%s"}
principal: {mtls: {name: dn}}
upstreams: [{name: orders, url: "http://orders", socket: %s, http2: true}]
routes: [{match: POST /orders, key: {required: true}}]
`, put("cert.pem", certPEM), put("key.pem", keyPEM), put("ca.pem", clients.pem()), filepath.Join(dir, "semel.db"), socket))
	g := startGatewayBy(t, file)
	as := func(name string) *http.Client {
		certPEM, keyPEM := clients.issue(t, name)
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		noError(t, err)
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: servers.pool(), Certificates: []tls.Certificate{pair}}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	post := func(c *http.Client) (body string, replayed bool) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, g.url+"/orders", strings.NewReader("{}"))
		noError(t, err)
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		res, err := c.Do(req)
		noError(t, err)
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		noError(t, err)
		want(t, "the status", res.StatusCode, http.StatusCreated)
		want(t, "the protocol", res.Proto, "HTTP/2.0")
		want(t, "what the upstream saw", res.Header.Get("X-Saw"), "HTTP/2.0 https")
		return string(text), res.Header.Get("Idempotency-Replayed") == "true"
	}
	for _, c := range []struct {
		name, body string
		replayed   bool
	}{{"ann", "1", false}, {"ann", "1", true}, {"bob", "2", false}} {
		body, replayed := post(as(c.name)) // each time with a new certificate
		want(t, c.name+"'s answer", body, c.body)
		want(t, c.name+"'s answer is replayed", replayed, c.replayed)
	}
	g.await("admin listener")
	if _, err := http.Get("http" + strings.TrimPrefix(g.url, "https") + "/orders"); err != nil {
		t.Logf("in clear: %v", err) // or 400, as net/http has it
	}
	want(t, "effects", effects.Load(), 2)
	g.terminate()
	want(t, "the exit code", g.exitCode(), 0)
}
