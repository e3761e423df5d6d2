package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// wiretap is an upstream that keeps the bytes it gets.
type wiretap struct {
	url string

	mu       sync.Mutex
	requests []string // as "METHOD target key=… body=…"
	raw      bytes.Buffer
}

func newWiretap(t *testing.T) *wiretap {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	w := &wiretap{url: "http://" + l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.serve(conn)
		}
	}()
	return w
}

func (w *wiretap) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var raw bytes.Buffer
	in := bufio.NewReader(io.TeeReader(conn, &raw))
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		w.mu.Lock()
		w.requests = append(w.requests, fmt.Sprintf("%s %s key=%s body=%q", r.Method, r.RequestURI, r.Header.Get("Idempotency-Key"), body))
		if err != nil {
			w.requests = append(w.requests, err.Error())
		}
		w.raw.Write(raw.Bytes())
		raw.Reset()
		w.mu.Unlock()
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

// take returns what has come since it was called last.
func (w *wiretap) take() (requests, raw string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	requests, raw = strings.Join(w.requests, "; "), w.raw.String()
	w.requests = nil
	w.raw.Reset()
	return requests, raw
}

// TestSmuggling sends a gateway what front and back have been seen to take for
// different requests. Each row is written whole, with a last request behind it:
// either the gateway refuses and closes the connection, or the service gets the
// requests that the gateway saw, framed in one way, and the last one is the last.
func TestSmuggling(t *testing.T) {
	up := newWiretap(t)
	gw := startGateway(t, "--upstream", up.url, "--store", "memory:")
	const hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	head := func(lines ...string) string {
		return "POST /p HTTP/1.1\r\nHost: a\r\nIdempotency-Key: KEY\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	const once = `POST /p key=KEY body="{}"`
	for n, tt := range []struct {
		name, request string
		statuses      string // of all responses; the last request is answered with 200
		service       string // what it gets but for the last request
	}{
		{"plain", head("Content-Length: 2") + "{}", "200 200", once},
		{"unknown coding", head("Transfer-Encoding: xchunked") + "0\r\n\r\n", "501", ""},
		{"coding behind chunked", head("Transfer-Encoding: chunked, identity") + "0\r\n\r\n", "501", ""},
		{"coding before chunked", head("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", "501", ""},
		{"chunked twice", head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + "0\r\n\r\n", "501", ""},
		{"chunked and nothing", head("Transfer-Encoding: chunked", "Transfer-Encoding:") + "0\r\n\r\n", "501", ""},
		{"chunked behind a vertical tab", head("Transfer-Encoding: \vchunked") + "0\r\n\r\n", "400", ""},
		{"space before the colon", head("Transfer-Encoding : chunked", "Content-Length: 2") + "{}", "400", ""},
		{"space before the name", "POST /p HTTP/1.1\r\n Host: a\r\nContent-Length: 0\r\n\r\n", "400", ""},
		{"two lengths", head("Content-Length: 2", "Content-Length: 30") + "{}", "400", ""},
		{"one length twice", head("Content-Length: 2", "Content-Length: 2") + "{}", "200 200", once},
		{"a list of lengths", head("Content-Length: 2, 2") + "{}", "400", ""},
		{"length with a sign", head("Content-Length: +2") + "{}", "400", ""},
		{"negative length", head("Content-Length: -2") + "{}", "400", ""},
		{"length in other digits", head("Content-Length: 0x2") + "{}", "400", ""},
		{"length beyond all", head("Content-Length: 18446744073709551618") + "{}", "400", ""},
		{"length and chunks", head("Content-Length: 2", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n", "200 200", once},
		{"chunks and length", head("Transfer-Encoding: chunked", "Content-Length: 900") + "2\r\n{}\r\n0\r\n\r\n", "200 200", once},
		// A proxy in front that went by the length would take both for one.
		{"request behind the chunks", head(fmt.Sprint("Content-Length: ", 5+len(hidden)), "Transfer-Encoding: chunked") + "0\r\n\r\n" + hidden, "200 200 200", `POST /p key=KEY body=""; GET /hidden key= body=""`},
		{"request as a body", head(fmt.Sprint("Content-Length: ", len(hidden))) + hidden, "200 200", fmt.Sprintf("POST /p key=KEY body=%q", hidden)},
		{"request as the body of a GET", fmt.Sprintf("GET /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden), "200 200", fmt.Sprintf("GET /p key= body=%q", hidden)},
		{"chunk extension", head("Transfer-Encoding: chunked") + "2;a=\"b\"\r\n{}\r\n0;c\r\n\r\n", "200 200", once},
		{"line end in a chunk extension", head("Transfer-Encoding: chunked") + "2;a\n{}\r\n0\r\n\r\n", "400", ""},
		{"chunk size beyond all", head("Transfer-Encoding: chunked") + "10000000000000002\r\n{}\r\n0\r\n\r\n", "400", ""},
		{"chunk size with a sign", head("Transfer-Encoding: chunked") + "+2\r\n{}\r\n0\r\n\r\n", "400", ""},
		{"chunk size in another notation", head("Transfer-Encoding: chunked") + "0x2\r\n{}\r\n0\r\n\r\n", "400", ""},
		{"chunk longer than said", head("Transfer-Encoding: chunked") + "1\r\n{}\r\n0\r\n\r\n", "400", ""},
		{"trailers that frame", head("Transfer-Encoding: chunked", "Trailer: X-A") + "2\r\n{}\r\n0\r\nContent-Length: 900\r\nTransfer-Encoding: chunked\r\nHost: b\r\nX-A: 1\r\n\r\n", "200 200", once},
		{"lines end in LF", "POST /p HTTP/1.1\nHost: a\nIdempotency-Key: KEY\nContent-Length: 2\n\n{}", "200 200", once},
		{"CR alone", head("X-A: 1\rTransfer-Encoding: chunked", "Content-Length: 2") + "{}", "400", ""},
		{"NUL in a value", head("X-A: \x00", "Content-Length: 2") + "{}", "400", ""},
		{"folded coding", head("Content-Length: 2", "X-A: 1", " Transfer-Encoding: chunked") + "{}", "200 200", once},
		{"name that is no name", head("X(A): 1", "Content-Length: 2") + "{}", "400", ""},
		{"no name", head(": 1", "Content-Length: 2") + "{}", "400", ""},
		{"two hosts", head("Host: b", "Content-Length: 2") + "{}", "400", ""},
		{"no host", "POST /p HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "400", ""},
		{"another host in the target", strings.Replace(head("Content-Length: 2"), "/p ", "http://b/p ", 1) + "{}", "200 200", once},
		{"words behind the version", "GET /p HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n", "400", ""},
		{"unknown version", "GET /p HTTP/1.9\r\nHost: a\r\n\r\n", "200 200", `GET /p key= body=""`},
		{"coding in HTTP/1.0", "POST /p HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", "200 200", `POST /p key= body="{}"`},
		{"chunks in HTTP/1.0", "POST /p HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "200 400", `POST /p key= body=""`},
		{"preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505", ""},
		{"slashes", strings.Replace(head("Content-Length: 2"), "/p ", "//p/..//%2e%2e%2Fp ", 1) + "{}", "200 200", `POST //p/..//%2e%2e%2Fp key=KEY body="{}"`},
		{"header that is too long", head("X-A: "+strings.Repeat("a", 80<<10), "Content-Length: 2") + "{}", "431", ""},
		{"key that Connection lists", head("Connection: Idempotency-Key", "Content-Length: 2") + "{}", "200 200", `POST /p key= body="{}"`},
		{"length that Connection lists", head("Connection: Content-Length", "Content-Length: 2") + "{}", "200 200", once},
		{"coding that Connection lists", head("Connection: Transfer-Encoding, close-not", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n", "200 200", once},
		{"change to HTTP/2", "GET /p HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", "200 200", `GET /p key= body=""`},
		{"change to HTTP/2 among others", "GET /p HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket, H2C\r\n\r\n", "200 200", `GET /p key= body=""`},
		{"change to TLS", "GET /p HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1\r\n\r\n", "200 200", `GET /p key= body=""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := fmt.Sprint("k", n)
			request := strings.ReplaceAll(tt.request, "KEY", key)
			statuses := onTheWire(t, gw, request+"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			want(t, "statuses", statuses, tt.statuses)
			service := strings.ReplaceAll(tt.service, "KEY", key)
			if strings.HasSuffix(tt.statuses, "200 200") {
				service += `; GET /last key= body=""`
			}
			requests, raw := up.take()
			want(t, "what the service got", requests, service)
			for block := range strings.SplitSeq(raw, "\r\n\r\n") {
				lower := strings.ToLower(block)
				if strings.Contains(lower, "\ncontent-length:") && strings.Contains(lower, "\ntransfer-encoding:") {
					t.Errorf("the service got a message that is framed in two ways:\n%s", block)
				}
				if strings.Contains(lower, "\nupgrade:") || strings.Contains(lower, "\nhttp2-settings:") {
					t.Errorf("the service was asked for another protocol:\n%s", block)
				}
			}
			if strings.Contains(strings.ReplaceAll(raw, "\r\n", ""), "\r") {
				t.Errorf("the service got a CR alone: %q", raw)
			}
			if strings.HasPrefix(request, "POST") && strings.HasPrefix(tt.statuses, "200") && strings.Contains(request, key) {
				// The record is the request's, whatever it was dressed in.
				want(t, "statuses of a repetition", onTheWire(t, gw, request+"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), tt.statuses)
				requests, _ := up.take()
				_, rest, found := strings.Cut(service, "; ")
				want(t, "what the service got of a repetition", requests, rest)
				want(t, "there was more", found, true)
			}
		})
	}
}

// onTheWire writes bytes on a connection, and returns the statuses of the
// responses until the gateway closes it.
func onTheWire(t *testing.T, gw *process, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(gw.url, "http://"))
	noError(t, err)
	defer func() { _ = conn.Close() }()
	noError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	go func() { _, _ = io.WriteString(conn, text) }() // it may be refused before it is read
	in := bufio.NewReader(conn)
	var statuses []string
	for {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			if err != io.ErrUnexpectedEOF && err != io.EOF && !strings.Contains(err.Error(), "reset") {
				t.Errorf("the responses end in %v", err)
			}
			return strings.Join(statuses, " ")
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		statuses = append(statuses, fmt.Sprint(res.StatusCode))
	}
}
