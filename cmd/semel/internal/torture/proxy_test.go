package torture

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestProxyCuts: at each point, the server sees what it should, and the client
// never a whole answer.
func TestProxyCuts(t *testing.T) {
	for _, at := range append([]cut{cutNot}, cuts...) {
		t.Run(string(at), func(t *testing.T) {
			whole := make(chan string, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				whole <- string(body)
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			}))
			h := newHistory(io.Discard)
			odds := 1.0
			if at == cutNot {
				odds = 0
			}
			p, err := newProxy("front 1", front, h, rand.New(rand.NewPCG(1, 2)), odds)
			if err != nil {
				t.Fatal(err)
			}
			p.lead(server.Listener.Addr().String())
			p.next = []cut{at}

			conn, err := net.Dial("tcp", p.addr())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(request("k"))
			res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodPost})
			if err == nil {
				_, err = io.ReadAll(res.Body)
			}
			if (err == nil) != (at == cutNot) {
				t.Errorf("the client's error is %v", err)
			}
			_ = conn.Close()
			p.close()
			server.Close() // waits for its handlers

			sees := slices.Contains([]cut{cutNot, cutAfter, cutAnswer}, at)
			if got := len(whole) == 1; got != sees {
				t.Errorf("the server saw the whole request: %v, want %v", got, sees)
			}
			events := h.snapshot()
			switch {
			case at == cutNot && len(events) > 0:
				t.Errorf("noted %v without a cut", events)
			case at != cutNot && (len(events) != 1 || events[0].key != "k" || events[0].text != string(at) || events[0].side != front):
				t.Errorf("noted %v, want one cut %s of key k", events, at)
			}
		})
	}
}
