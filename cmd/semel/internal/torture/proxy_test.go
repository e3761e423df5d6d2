package torture

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

// TestProxyCuts checks that, at each point of a cut, the server sees what it should,
// and the client never gets a whole response, however long it is.
func TestProxyCuts(t *testing.T) {
	for _, f := range forms {
		for _, at := range append([]cut{cutNot}, cuts...) {
			for seed := range uint64(5) {
				t.Run(fmt.Sprintf("%s/%s/%d", f, at, seed), func(t *testing.T) {
					t.Parallel()
					proxyCuts(t, f, at, seed)
				})
			}
		}
	}
}

func proxyCuts(t *testing.T, f form, at cut, seed uint64) {
	key := "k-1-" + string(f)
	plan := newPlanner(Manner{Seed: seed}).plan(key)
	effect := Effect{ID: "e1", Key: key}
	whole := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		whole <- string(body)
		plan.respond(w, effect, func(Effect) {})
	}))
	h := newHistory(io.Discard)
	odds := 1.0
	if at == cutNot {
		odds = 0
	}
	p, err := newProxy("front 1", front, h, rand.New(rand.NewPCG(seed, 2)), odds)
	if err != nil {
		t.Fatal(err)
	}
	p.lead(server.Listener.Addr().String())
	p.next = []cut{at}

	conn, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(request(key))
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodPost})
	var body []byte
	if err == nil {
		body, err = io.ReadAll(res.Body)
	}
	if (err == nil) != (at == cutNot) {
		t.Errorf("the client's error is %v", err)
	}
	told, torn := parseReply(f, body)
	if at == cutNot && (torn != nil || told.Effect != effect.ID || told.Key != key) {
		t.Errorf("the whole response is read as effect %q of key %q, error %v", told.Effect, told.Key, torn)
	}
	_ = conn.Close()
	p.close()
	server.Close() // waits for its handlers

	sees := slices.Contains([]cut{cutNot, cutAfter, cutResponse}, at)
	if got := len(whole) == 1; got != sees {
		t.Errorf("the server saw the whole request: %v, want %v", got, sees)
	}
	events := h.snapshot()
	switch {
	case at == cutNot && len(events) > 0:
		t.Errorf("noted %v without a cut", events)
	case at != cutNot && (len(events) != 1 || events[0].key != key || events[0].text != string(at) || events[0].side != front):
		t.Errorf("noted %v, want one cut %s of the key", events, at)
	}
}

// TestBrokenChunks checks that if a server breaks off within a chunked body, so does the
// proxy, after it has passed on all that arrived.
func TestBrokenChunks(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	p, err := newProxy("back 1", back, newHistory(io.Discard), rand.New(rand.NewPCG(1, 2)), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.lead(server.Listener.Addr().String())
	res, err := http.Post("http://"+p.addr(), "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err := io.ReadAll(res.Body); err == nil || string(body) != "some" {
		t.Errorf("the body is %q, error %v; want what was sent, and an error", body, err)
	}
}

// TestTornReply checks that no part of a response passes for the whole.
func TestTornReply(t *testing.T) {
	for _, f := range forms {
		key := "k-1-" + string(f)
		parts := newPlanner(Manner{Seed: 3}).plan(key).parts(Effect{ID: "e1", Key: key})
		body := bytes.Join(parts, nil)
		if told, err := parseReply(f, body); err != nil || told.Effect != "e1" {
			t.Errorf("%s: the whole is read as %q, error %v", f, told.Effect, err)
		}
		for n := 0; n < len(body); n += 1 + n/8 {
			if _, err := parseReply(f, body[:n]); err == nil {
				t.Errorf("%s: %d bytes of %d pass for the whole", f, n, len(body))
			}
		}
		if _, err := parseReply(f, body[:len(body)-1]); err == nil {
			t.Errorf("%s: all bytes but one pass for the whole", f)
		}
	}
}
