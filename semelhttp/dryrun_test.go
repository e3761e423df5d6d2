package semelhttp_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// rehearsed is a service behind a dry run: it answers with the digest of what it
// was sent, and as the path says.
type rehearsed struct {
	t       *testing.T
	store   *memory.Store
	guard   *semel.Guard
	calls   atomic.Int64
	entered chan struct{}
	leave   chan struct{}
	server  *httptest.Server
	labels  chan string
}

func rehearse(t *testing.T, c semelhttp.Config, store semel.Store) *rehearsed {
	t.Helper()
	h := &rehearsed{t: t, entered: make(chan struct{}, 10), leave: make(chan struct{}), labels: make(chan string, 1000)}
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h.store = m
	if store == nil {
		store = m
	}
	h.guard, err = semel.New(semel.Config{Store: store, Observer: &semel.Observer{Answered: func(_ context.Context, a semel.Answered) { h.labels <- a.Label }}})
	if err != nil {
		t.Fatal(err)
	}
	c.Guard, c.DryRun = h.guard, true
	c.Scope = func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil }
	h.server = httptest.NewServer(h.protect(c))
	t.Cleanup(h.server.Close)
	return h
}

func (h *rehearsed) protect(c semelhttp.Config) http.Handler {
	h.t.Helper()
	protect, err := semelhttp.New(c)
	if err != nil {
		h.t.Fatal(err)
	}
	return protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		digest := sha256.New()
		if _, err := io.Copy(digest, r.Body); err != nil {
			h.t.Errorf("the handler could not read the body: %v", err)
		}
		if _, ok := semel.CurrentExecution(r.Context()); ok && c.DryRun {
			h.t.Error("the handler runs in an execution")
		}
		w.Header().Set("X-Trailer", r.Trailer.Get("X-Trailer"))
		switch r.URL.Path {
		case "/wait":
			h.entered <- struct{}{}
			<-h.leave
		case "/abort":
			_, _ = io.WriteString(w, "a part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/429":
			w.WriteHeader(429)
		case "/502":
			w.WriteHeader(502)
		}
		_, _ = io.WriteString(w, hex.EncodeToString(digest.Sum(nil)))
	}))
}

// send returns the answer's verdict and its body.
func (h *rehearsed) send(method, path, key string, body io.Reader, header ...string) (verdict, text string) {
	h.t.Helper()
	req, err := http.NewRequest(method, h.server.URL+path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	for _, name := range []string{"Idempotency-Replayed", "Idempotency-Expires", "Preference-Applied"} {
		if v := res.Header.Get(name); v != "" {
			h.t.Errorf("%s %s %s: the answer has %s: %s", method, path, key, name, v)
		}
	}
	return res.Header.Get(semelhttp.HeaderDryRun), string(b)
}

func digestOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// TestDryRunForwardsEverything: whatever is decided, each request reaches the
// handler with its whole body, once, and has the handler's answer.
func TestDryRunForwardsEverything(t *testing.T) {
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: t.TempDir(), MaxBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	h := rehearse(t, semelhttp.Config{RequireKey: true, MaxRequestBody: 2 << 20, Spools: spools}, nil)
	large, huge := strings.Repeat("large", 100_000), strings.Repeat("huge", 1<<20)
	chunked := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }
	for i, s := range []struct {
		method, path, key, body string
		chunked                 bool
		verdict                 string
	}{
		{"POST", "/a", "a", "{}", false, "executed"},
		{"POST", "/a", "a", "{}", false, "replayed"},
		{"POST", "/a", "a", "{}", true, "replayed"},
		{"POST", "/a", "a", "[]", false, "mismatch"},
		{"POST", "/a", "large", large, false, "executed"},
		{"POST", "/a", "large", large, true, "replayed"},
		{"POST", "/a", "huge", huge, false, "rejected;problem=body-too-large"},
		{"POST", "/a", "huge", huge, true, "rejected;problem=body-too-large"}, // 1 MiB of it fits a file of the spools
		{"POST", "/a", "", "{}", false, "rejected;problem=key-missing"},
		{"POST", "/a", "\"", "{}", false, "rejected;problem=key-malformed"},
		{"POST", "/429", "b", "{}", false, "executed"},
		{"POST", "/429", "b", "{}", false, "executed"},
		{"POST", "/a", "empty", "", false, "executed"},
		{"POST", "/a", "empty", "", false, "replayed"},
		{"GET", "/a", "a", "", false, ""},
		{"PUT", "/a", "a", large, false, ""},
	} {
		body := io.Reader(strings.NewReader(s.body))
		if s.chunked {
			body = chunked(s.body)
		}
		verdict, text := h.send(s.method, s.path, s.key, body, "Prefer", "respond-async, wait=10")
		if s.verdict == "rejected;problem=body-too-large" && s.chunked && verdict != s.verdict {
			// The trial may be out of room for it before it is too large.
			s.verdict = "unavailable;problem=spool-unavailable"
			if verdict == "rejected;problem=body-unreadable" {
				s.verdict = verdict
			}
		}
		if verdict != s.verdict || text != digestOf(s.body) {
			t.Errorf("%d: %s %s %q: the verdict is %q, want %q; the handler had %d bytes: %v", i, s.method, s.path, s.key, verdict, s.verdict, len(s.body), text == digestOf(s.body))
		}
		if n := int(h.calls.Load()); n != i+1 {
			t.Fatalf("%d: the handler was called %d times", i, n)
		}
	}
	if n := spools.Used(); n != 0 {
		t.Errorf("the spools still hold %d bytes", n)
	}
}

// TestDryRunInProgress: a duplicate of a running request is forwarded at once.
func TestDryRunInProgress(t *testing.T) {
	h := rehearse(t, semelhttp.Config{InFlight: semelhttp.InFlightWait, Wait: time.Hour, MaxWait: time.Hour}, nil)
	first := make(chan string)
	go func() {
		verdict, _ := h.send("POST", "/wait", "k", strings.NewReader("{}"))
		first <- verdict
	}()
	<-h.entered
	second := make(chan string)
	go func() {
		verdict, _ := h.send("POST", "/wait", "k", strings.NewReader("{}"))
		second <- verdict
	}()
	select {
	case <-h.entered: // it is there beside the first
	case <-time.After(10 * time.Second):
		t.Error("the duplicate waits")
	}
	close(h.leave)
	if one, two := <-first, <-second; one != "executed" || two != "in_progress" {
		t.Errorf("the verdicts are %q and %q", one, two)
	}
}

// TestDryRunUnknown: an answer that leaves the outcome open is told of as unknown,
// and so are its duplicates; but no record is left for anybody to settle.
func TestDryRunUnknown(t *testing.T) {
	h := rehearse(t, semelhttp.Config{IndeterminateStatus: func(status int, _ http.Header) bool { return status == 502 }}, nil)
	for _, path := range []string{"/502", "/abort"} {
		for i, want := range []string{"executed", "unknown"} {
			if verdict, _ := h.send("POST", path, "k", strings.NewReader("{}")); verdict != want {
				t.Errorf("%s, request %d: %q, want %q", path, i+1, verdict, want)
			}
			if label := <-h.labels; label != semelhttp.LabelDryRunUnknown {
				t.Errorf("%s, request %d: observers were told %q", path, i+1, label)
			}
		}
	}
	open, err := h.store.List(t.Context(), semel.Filter{State: semel.StateUnknown})
	if err != nil || len(open) != 0 {
		t.Errorf("%d records are unknown (%v)", len(open), err)
	}
}

// TestDryRunLifted: the same key before and after a dry run on the same store, in
// both directions. Nothing that a dry run has recorded is taken for a result, and
// no result for something that it has recorded.
func TestDryRunLifted(t *testing.T) {
	h := rehearse(t, semelhttp.Config{}, nil)
	real := httptest.NewServer(h.protect(semelhttp.Config{
		Guard: h.guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil },
	}))
	t.Cleanup(real.Close)
	dry := h.server
	at := func(server *httptest.Server, key, body string) (string, string, bool) {
		t.Helper()
		h.server = server
		before := h.calls.Load()
		req, err := http.NewRequest("POST", server.URL+"/a", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, _ := io.ReadAll(res.Body)
		return res.Header.Get("Idempotency-Replayed") + res.Header.Get(semelhttp.HeaderDryRun), string(b), h.calls.Load() > before
	}
	for i, s := range []struct {
		server    *httptest.Server
		key, body string
		says      string
		called    bool
	}{
		{dry, "k", "{}", "executed", true},
		{real, "k", "{}", "", true}, // and not replayed
		{real, "k", "{}", "true", false},
		{real, "k", "[]", "", false}, // a mismatch, by the real record
		{dry, "k", "{}", "replayed", true},
		{real, "other", "{}", "", true},
		{dry, "other", "[]", "executed", true}, // and no mismatch with the real record
	} {
		says, text, called := at(s.server, s.key, s.body)
		if says != s.says || called != s.called || s.called && text != digestOf(s.body) {
			t.Errorf("%d: it said %q, want %q; the handler was called: %v, want %v; the body is %q", i, says, s.says, called, s.called, text)
		}
	}
	all, err := h.store.List(t.Context(), semel.Filter{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	trials := 0
	for _, r := range all {
		if strings.HasPrefix(r.Identity.Operation, "semel dry-run: POST ") {
			trials++
			found, err := h.store.Find(t.Context(), r.Identity)
			if err != nil || !found.Result.Tombstone || len(found.Result.Head)+len(found.Result.Body) > 0 || found.Result.Codec == semelhttp.CodecHTTP {
				t.Errorf("a dry run has recorded %+v (%v)", found.Result, err)
			}
		}
	}
	if trials != 1 || len(all) != 2 {
		t.Errorf("there are %d records of the dry run among %d", trials, len(all))
	}
}

type closedStore struct{ semel.Store }

func (closedStore) Begin(context.Context, semel.Attempt) (semel.Claim, error) {
	return nil, semel.ErrNotOpen
}

// TestDryRunWithoutStore: a store that is down is told, and holds nothing up.
func TestDryRunWithoutStore(t *testing.T) {
	h := rehearse(t, semelhttp.Config{}, closedStore{})
	if verdict, text := h.send("POST", "/a", "k", strings.NewReader("{}")); verdict != "unavailable" || text != digestOf("{}") {
		t.Errorf("the verdict is %q", verdict)
	}
}

// TestDryRunPanics: what a configuration brings along and panics is not the
// request's trouble.
func TestDryRunPanics(t *testing.T) {
	h := rehearse(t, semelhttp.Config{Origin: func(*http.Request) semel.Origin { panic("no origin") }}, nil)
	if verdict, text := h.send("POST", "/a", "k", strings.NewReader("{}")); verdict != "failed" || text != digestOf("{}") {
		t.Errorf("the verdict is %q", verdict)
	}
}

// TestDryRunConcurrently is for the race detector: one key from many clients, with
// bodies that go through files.
func TestDryRunConcurrently(t *testing.T) {
	h := rehearse(t, semelhttp.Config{}, nil)
	body := bytes.Repeat([]byte("x"), 300<<10)
	done := make(chan string)
	for i := range 16 {
		go func() {
			verdict, text := h.send("POST", "/a", fmt.Sprint("k", i%4), bytes.NewReader(body))
			if text != digestOf(string(body)) {
				verdict = "a body that is not the client's"
			}
			done <- verdict
		}()
	}
	count := map[string]int{}
	for range 16 {
		count[<-done]++
	}
	if count["executed"] != 4 || count["replayed"]+count["in_progress"] != 12 || h.calls.Load() != 16 {
		t.Errorf("%v; the handler was called %d times", count, h.calls.Load())
	}
}
