package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// listening says where and how to listen.
type listening struct {
	Address   string // host:port, or unix: and the path of a socket
	Cert, Key string // PEM files; TLS if they are set
	ClientCA  string // PEM file: clients need a certificate that one of it has signed
	H2C       bool   // HTTP/2 also in clear, of clients that know of it
}

// unixPrefix is before the path of a socket in an address.
const unixPrefix = "unix:"

// encrypted reports whether l is for TLS.
func (l listening) encrypted() bool { return l.Cert != "" }

// check reports settings that do not fit together.
func (l listening) check() error {
	switch {
	case (l.Cert == "") != (l.Key == ""):
		return errors.New("both a certificate and its key are needed")
	case l.ClientCA != "" && l.Cert == "":
		return errors.New("client certificates need TLS: give a certificate and its key")
	case l.H2C && l.Cert != "":
		return errors.New("HTTP/2 without TLS and TLS exclude each other; TLS includes HTTP/2")
	}
	return nil
}

// url is the address as of a listener, for people.
func (l listening) url(addr string) string {
	switch {
	case strings.HasPrefix(l.Address, unixPrefix):
		return l.Address
	case l.encrypted():
		return "https://" + addr
	}
	return "http://" + addr
}

// open returns the listener. It has loaded the certificate, and will load it again
// when its files change: failed is told where that fails, and the former one stays.
func (l listening) open(ctx context.Context, failed func(error)) (net.Listener, error) {
	network, address := "tcp", l.Address
	if path, ok := strings.CutPrefix(l.Address, unixPrefix); ok {
		network, address = "unix", path
		if err := removeStale(ctx, path); err != nil {
			return nil, err
		}
	}
	var files *certFiles
	if l.encrypted() {
		files = &certFiles{cert: l.Cert, key: l.Key, clientCA: l.ClientCA, failed: failed, now: time.Now}
		if err := files.load(); err != nil {
			return nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil || files == nil {
		return listener, err
	}
	return tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: files.current}), nil
}

// protocols are those that a server on l speaks.
func (l listening) protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(l.encrypted())
	p.SetUnencryptedHTTP2(l.H2C && !l.encrypted())
	return p
}

// removeStale removes a socket that nobody listens on any more, which a process
// that was killed leaves behind.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists already, and is not a socket", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process is listening on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// certFiles is a certificate that is loaded again when its files change.
type certFiles struct {
	cert, key, clientCA string
	failed              func(error)
	now                 func() time.Time

	mu     sync.Mutex
	config *tls.Config
	looked time.Time
	stamps [3]fileStamp // of the files when they were last loaded, or failed to be
}

// fileStamp tells whether a file is another.
type fileStamp struct {
	time time.Time
	size int64
}

// lookEvery is how often the files are looked at, at most: at a handshake.
const lookEvery = time.Second

// current returns what holds for a connection that begins now.
func (f *certFiles) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.looked) >= lookEvery || now.Before(f.looked) {
		f.looked = now
		if f.stamp() != f.stamps {
			if err := f.load(); err != nil {
				f.failed(fmt.Errorf("the certificate was not reloaded, and the former one stays in use: %w", err))
			}
		}
	}
	return f.config, nil
}

// stamp looks at the files. One that is not there has a zero stamp.
func (f *certFiles) stamp() (all [3]fileStamp) {
	for i, path := range []string{f.cert, f.key, f.clientCA} {
		if info, err := os.Stat(path); err == nil {
			all[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

// load reads the files. Half of a pair that is being replaced is an error, and is
// tried again once the other half has changed.
func (f *certFiles) load() error {
	f.stamps = f.stamp() // before: what changes meanwhile is loaded again
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", f.cert, f.key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.clientCA != "" {
		pem, err := os.ReadFile(f.clientCA)
		if err != nil {
			return err
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		// A session that is resumed would be let in by what held when it began.
		config.SessionTicketsDisabled = true
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: there is no certificate in it", f.clientCA)
		}
	}
	f.config = config
	return nil
}
