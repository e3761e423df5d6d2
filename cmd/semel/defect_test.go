package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

// instead is the first argument of this test's own process where it serves a
// gateway or a shop with a defect, which is named by the second.
const instead = "defective"

// defective returns the command for torture.Config.Instead.
func defective(t *testing.T, defect string) []string {
	t.Helper()
	self, err := os.Executable()
	noError(t, err)
	return []string{self, instead, defect}
}

// serveDefective is that command. Its arguments are those of the program.
func serveDefective(defect string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &program{env: map[string]string{}, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	if hooks, ok := shopDefects()[defect]; ok {
		cmd := p.tortureShopCommand(hooks)
		cmd.SetArgs(args[2:]) // after torture shop
		return cmd.ExecuteContext(ctx)
	}
	c := defectiveConfig{defect: defect}
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.StringVar(&c.listen, "listen", "", "")
	f.StringVar(&c.upstream, "upstream", "", "")
	f.StringVar(&c.store, "store", "", "")
	f.DurationVar(&c.lease, "lease", 0, "")
	f.DurationVar(&c.deadline, "deadline", 0, "")
	f.StringVar(&c.onCrash, "on-crash", "", "")
	f.Int64Var(&c.maxInline, "max-inline", 0, "")
	f.Int64Var(&c.maxResult, "max-result", 0, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	return serveDefectiveGateway(ctx, c)
}

// Defects of gateways.
const (
	// defectNoFence writes also under a claim that was taken over.
	defectNoFence = "no-fence"
	// defectRelease frees the key when the client goes away.
	defectRelease = "release-on-disconnect"
	// defectRequestContext writes the record under the request's context, which
	// ends when the client goes away.
	defectRequestContext = "record-on-request-context"
	// defectResend has a transport that may send a request again by itself.
	defectResend = "transport-resend"
	// defectEarly records that a stream completed when it begins.
	defectEarly = "early-tombstone"
	// defectRecover recovers from the panic by which a response is cut off, so
	// that the server brings it to an end.
	defectRecover = "recovered-abort"
)

// defectiveConfig is what a gateway with a defect is told.
type defectiveConfig struct {
	defect, listen, upstream, store, onCrash string
	lease, deadline                          time.Duration
	maxInline, maxResult                     int64
}

// serveDefectiveGateway runs a gateway with a defect until ctx ends.
func serveDefectiveGateway(ctx context.Context, c defectiveConfig) (err error) {
	path, err := sqlite.ParseURL(c.store)
	if err != nil {
		return err
	}
	upstream, err := url.Parse(c.upstream)
	if err != nil {
		return err
	}
	healthy, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, healthy.Close(context.WithoutCancel(ctx))) }()
	store := &defectiveStore{Store: healthy, defect: c.defect}
	if c.defect == defectNoFence {
		if store.thief, err = openThief(path); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.thief.close()) }()
	}
	policy := semel.Policy{Lease: c.lease, Deadline: c.deadline}
	if c.onCrash == "retry" {
		policy.OnCrash = semel.CrashRetry
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: policy, Observer: &semel.Observer{
		StoreFailed: func(_ context.Context, f semel.StoreFailed) {
			_, _ = fmt.Fprintf(os.Stderr, "store failed: %s of record %s: %v\n", f.Call, f.RecordID, f.Err)
		},
		LeaseLost: func(_ context.Context, f semel.LeaseLost) {
			_, _ = fmt.Fprintf(os.Stderr, "lease lost: record %s, fence %d: %v\n", f.RecordID, f.Fence, f.Cause)
		},
	}})
	if err != nil {
		return err
	}
	var handler http.Handler
	if c.defect == defectResend {
		handler, err = resendingGateway(c, guard, upstream)
	} else {
		handler, err = gateway.New(gateway.Config{Upstream: upstream, Guard: guard, MaxInline: c.maxInline, MaxResult: c.maxResult})
	}
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: withDefect(c.defect, handler), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	_, _ = fmt.Fprintf(os.Stderr, "semel gateway is listening on http://%s\n", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), policy.Deadline)
	defer cancel()
	return errors.Join(server.Shutdown(ending), guard.Drain(ending))
}

// disconnect is the end of a client, as a claim can learn of it.
type disconnect struct {
	request context.Context

	mu    sync.Mutex
	claim semel.Claim
}

type disconnectKey struct{}

// withDefect has what handles a request know of its client's end. A guard keeps
// the values of a context, but not its end.
func withDefect(defect string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &disconnect{request: r.Context()}
		switch defect {
		case defectRelease:
			stop := context.AfterFunc(r.Context(), d.release)
			defer stop()
		case defectEarly:
			w = &earlyWriter{w, d}
		case defectRecover:
			defer func() { _ = recover() }()
			// It also hides the connection, whose deadline would cut the response off.
			w = struct {
				http.ResponseWriter
				http.Flusher
			}{w, w.(http.Flusher)}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), disconnectKey{}, d)))
	})
}

// release frees the key. Only a store with that defect has given a claim.
func (d *disconnect) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil {
		_ = d.claim.Release(context.WithoutCancel(d.request))
	}
}

// earlyWriter completes the record when the header of a stream passes.
type earlyWriter struct {
	http.ResponseWriter
	disconnect *disconnect
}

// WriteHeader implements http.ResponseWriter.
func (w *earlyWriter) WriteHeader(status int) {
	d := w.disconnect
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil && w.Header().Get("Content-Type") == "text/event-stream" {
		_, _ = d.claim.Complete(context.WithoutCancel(d.request), semel.Result{Codec: semelhttp.CodecHTTP, Tombstone: true})
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *earlyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// defectiveStore is a good store that is used wrongly.
type defectiveStore struct {
	*sqlite.Store
	defect string
	thief  *thief
}

// Begin implements semel.Store.
func (s *defectiveStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	claim, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	switch s.defect {
	case defectNoFence:
		return &unfencedClaim{claim, s.thief, a}, nil
	case defectRelease, defectEarly:
		d := ctx.Value(disconnectKey{}).(*disconnect)
		d.mu.Lock()
		d.claim = claim
		d.mu.Unlock()
	case defectRequestContext:
		return &boundClaim{claim}, nil
	}
	return claim, nil
}

// boundClaim writes its record under the request's context.
type boundClaim struct{ semel.Claim }

// Complete implements semel.Claim.
func (c *boundClaim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	return c.Claim.Complete(ctx.Value(disconnectKey{}).(*disconnect).request, r)
}

// unfencedClaim writes to the record of its identity whoever has the claim now.
type unfencedClaim struct {
	semel.Claim
	thief   *thief
	attempt semel.Attempt
}

// again has a call that failed for its stale fence succeed.
func (c *unfencedClaim) again(ctx context.Context, err error, call func() error) error {
	if !errors.Is(err, semel.ErrLostClaim) {
		return err
	}
	if err := c.thief.steal(ctx, c.attempt, c.Fence()); err != nil {
		return err
	}
	return call()
}

// Complete implements semel.Claim.
func (c *unfencedClaim) Complete(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	call := func() (err error) {
		expires, err = c.Claim.Complete(ctx, r)
		return err
	}
	err = c.again(ctx, call(), call)
	return expires, err
}

// Release implements semel.Claim.
func (c *unfencedClaim) Release(ctx context.Context) error {
	return c.again(ctx, c.Claim.Release(ctx), func() error { return c.Claim.Release(ctx) })
}

// Hold implements semel.Claim.
func (c *unfencedClaim) Hold(ctx context.Context, cause string) error {
	return c.again(ctx, c.Claim.Hold(ctx, cause), func() error { return c.Claim.Hold(ctx, cause) })
}

// Renew implements semel.Claim. Its loss is not noticed.
func (c *unfencedClaim) Renew(ctx context.Context) error {
	if err := c.Claim.Renew(ctx); !errors.Is(err, semel.ErrLostClaim) {
		return err
	}
	return nil
}

// thief gives records back to claims that have lost them. No store offers
// that, so it writes to the table itself.
type thief struct{ db *sql.DB }

func openThief(path string) (*thief, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	uri := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "_pragma=busy_timeout(5000)"}
	if !strings.HasPrefix(uri.Path, "/") {
		uri.Path = "/" + uri.Path // C:/semel.db
	}
	db, err := sql.Open("sqlite", uri.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return &thief{db}, nil
}

func (t *thief) steal(ctx context.Context, a semel.Attempt, fence uint64) error {
	_, err := t.db.ExecContext(ctx, `
		UPDATE record SET fence = CASE WHEN number <> ?1 THEN ?1 END, token = ?2, state = 1, lease_until = 0, settled_at = NULL, expires_at = NULL
		WHERE key = ?3 AND operation = ?4 AND actor = ?5 AND tenant = ?6`,
		int64(fence), a.Token[:], a.Identity.Key, a.Identity.Operation, a.Identity.Actor, a.Identity.Tenant)
	return err
}

func (t *thief) close() error { return t.db.Close() }

// resendingGateway protects as a gateway does, but leaves it to the transport to
// send: the body can be had again, and the header says Idempotency-Key. That is
// when package net/http repeats a request whose reused connection broke.
func resendingGateway(c defectiveConfig, guard *semel.Guard, upstream *url.URL) (http.Handler, error) {
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, MaxInline: c.maxInline, MaxResult: c.maxResult,
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
		IndeterminateStatus: func(status int, _ http.Header) bool {
			return status == http.StatusBadGateway
		},
	})
	if err != nil {
		return nil, err
	}
	return protect(&httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: gateway.DefaultIdleTimeout},
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(upstream)
			if x, ok := semel.CurrentExecution(p.In.Context()); ok {
				p.Out.Header.Set(gateway.HeaderFence, strconv.FormatUint(x.Fence(), 10))
			}
			body, err := io.ReadAll(p.In.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			p.Out.Body = io.NopCloser(bytes.NewReader(body))
			p.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		},
		ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
				semelhttp.DeclareNoEffect(r.Context(), err)
				w.Header().Set("Retry-After", "1")
				semelhttp.Problem{
					Type: gateway.ProblemUpstreamUnreachable.Type(), Status: http.StatusServiceUnavailable,
					Retry: semel.RetrySameKey, RetryAfter: time.Second,
				}.Write(w)
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}), nil
}
