package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// TestLikeReverseProxy sends the same bytes through a gateway and through a bare
// httputil.ReverseProxy to an upstream that answers with the same bytes. What the
// upstream sees and what the client gets have to be equal, but for what a row
// says: ours is then what the gateway does instead. Rows whose method is POST are
// sent with a key too.
func TestLikeReverseProxy(t *testing.T) {
	const (
		ok    = "HTTP/1.1 200 OK\r\nX-Upstream: 1\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nok"
		plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
		post  = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
	)
	get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n" }
	with := func(lines ...string) string {
		return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n{}"
	}
	chunked := func(rest string, lines ...string) string {
		return "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + strings.Join(append(lines, ""), "\r\n") + "\r\n" + rest
	}
	answers := func(status string, lines ...string) string {
		return "HTTP/1.1 " + status + "\r\nX-Upstream: 1\r\n" + strings.Join(append(lines, ""), "\r\n") + "\r\n"
	}
	upgrade := func(protocol string) string {
		return "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"
	}
	switched := func(lines ...string) string { return answers("101 Switching Protocols", lines...) }
	const big = 5000

	tests := []struct {
		name, request, answer string
		early                 bool        // the upstream answers before it has the body
		ours                  *transcript // if that is not what the bare proxy does
		keyed                 *transcript // if that is not ours; skip for what is no request to protect
	}{
		// The request's target.
		{name: "query with semicolons", request: get("/x?a=1;b=2&c=%zz&d"), answer: ok},
		{name: "empty query", request: get("/x?"), answer: ok},
		{name: "escaped slash", request: get("/a%2Fb%3F/c%20d"), answer: ok},
		{name: "dots and slashes", request: get("//a//../b/./%2e%2e/c"), answer: ok},
		{name: "absolute form", request: get("http://other.example:1/p?q"), answer: ok},
		{name: "absolute form with a user", request: get("http://u:p@other.example/p"), answer: ok},
		{name: "absolute form without a path", request: get("http://other.example"), answer: ok},
		{name: "asterisk", request: get("*"), answer: ok},
		{
			name: "opaque form", request: get("http:admin"), answer: ok, // the bare proxy asks for "admin", past the base path
			ours: badRequest,
		},
		{name: "no host", request: "GET / HTTP/1.1\r\n\r\n", answer: ok},
		{name: "two hosts", request: "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", answer: ok},
		{name: "HTTP/1.0", request: "GET / HTTP/1.0\r\n\r\n", answer: ok},
		{name: "odd method", request: "BREW / HTTP/1.1\r\nHost: a\r\n\r\n", answer: ok},

		// The request's header.
		{name: "agent and no agent", request: with("User-Agent:"), answer: ok},
		{name: "usual fields", request: with("User-Agent: test", "Accept: a", "Accept: b", "Cookie: a=1; b=2", "Accept-Encoding: br", "X-Empty:"), answer: ok},
		{name: "forged forwarding", request: with("X-Forwarded-For: 192.0.2.1", "X-Forwarded-Host: f", "X-Forwarded-Proto: f", "Forwarded: for=192.0.2.1"), answer: ok},
		{name: "listed by connection", request: with("Connection: X-Hop, close", "connection: ,x-two ,", "X-Hop: 1", "X-Two: 2", "X-Own: 3"), answer: ok},
		{
			name: "connection lists what the proxy says", answer: ok,
			request: with("Connection: X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, User-Agent, Te, Host, Content-Length, Semel-Fence"),
		},
		{name: "connection lists a credential", request: with("Connection: Authorization, Cookie", "Authorization: a", "Cookie: a=1"), answer: ok},
		{
			name: "hop-by-hop", answer: ok,
			request: with("Keep-Alive: 5", "Proxy-Connection: keep-alive", "Proxy-Authorization: a", "Proxy-Authenticate: b", "TE: gzip", "Trailer: X-T"),
		},
		{name: "trailers welcome", request: with("TE: gzip;q=1, Trailers", "Connection: TE"), answer: ok},
		{name: "fence", request: with("Semel-Fence: 9"), answer: ok},
		{name: "name with a space", request: with("X-Bad : 1"), answer: ok},
		{name: "folded line", request: with("X-Folded: 1", " 2"), answer: ok},
		{name: "bytes beyond ASCII", request: with("X-Latin: \xe9"), answer: ok},
		{name: "control byte", request: with("X-Control: a\x01b"), answer: ok},

		// The request's body.
		{name: "length and chunks", request: chunked("2\r\n{}\r\n0\r\n\r\n", "Content-Length: 3"), answer: ok},
		{name: "two lengths", request: with("Content-Length: 3"), answer: ok},
		{name: "one length twice", request: with("Content-Length: 2"), answer: ok},
		{name: "negative length", request: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", answer: ok},
		{name: "unknown coding", request: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", answer: ok},
		{name: "chunks", request: chunked("1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n"), answer: ok},
		{name: "no chunks", request: chunked("0\r\n\r\n"), answer: ok},
		{name: "chunks of a GET", request: strings.Replace(chunked("2\r\n{}\r\n0\r\n\r\n"), "POST", "GET", 1), answer: ok},
		{name: "malformed chunks", request: chunked("2\r\n{}\r\n-1\r\n\r\n"), answer: ok, keyed: badRequest},
		{name: "no body", request: "POST / HTTP/1.1\r\nHost: a\r\n\r\n", answer: ok},
		{name: "body of one write", request: fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", smallBody, strings.Repeat("x", smallBody)), answer: ok},
		{name: "larger body", request: fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", 100*big, strings.Repeat("x", 100*big)), answer: ok},
		{
			name: "trailers", answer: ok, // the bare proxy announces them and sends none
			request: chunked("2\r\n{}\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\nX-Not-Announced: 3\r\n\r\n", "Trailer: X-Sum"),
			ours:    &transcript{upstream: "POST /base/ HTTP/1.1\ntrailer: X-Sum\ntransfer-encoding: chunked\n+forwarded\n\n{}\n\nX-Sum: 1\nX-Sum: 2"},
			keyed:   &transcript{upstream: "POST /base/ HTTP/1.1\ntrailer: X-Not-Announced,X-Sum\ntransfer-encoding: chunked\n+forwarded\n\n{}\n\nX-Not-Announced: 3\nX-Sum: 1\nX-Sum: 2"},
		},
		{
			name: "trailers that frame", answer: ok, // the transport would not send them
			request: chunked("2\r\n{}\r\n0\r\nContent-Length: 7\r\nHost: b\r\nX-Sum: 1\r\n\r\n", "Trailer: X-Sum, Host"),
			ours:    &transcript{upstream: "POST /base/ HTTP/1.1\ntrailer: X-Sum\ntransfer-encoding: chunked\n+forwarded\n\n{}\n\nX-Sum: 1"},
		},
		{name: "malformed trailers", request: chunked("2\r\n{}\r\n0\r\nX-Sum: a\x00b\r\n\r\n", "Trailer: X-Sum"), answer: ok, keyed: badRequest},
		{name: "trailer announced that must not be", request: chunked("0\r\n\r\n", "Trailer: Content-Length"), answer: ok},
		{name: "expectation met", request: with("Expect: 100-continue"), answer: "HTTP/1.1 100 Continue\r\n\r\n" + ok, early: true, keyed: skip},
		{name: "expectation refused", request: with("Expect: 100-continue"), answer: answers("417 Expectation Failed", "Connection: close", "Content-Length: 0"), early: true, keyed: skip},
		{name: "expectation of another kind", request: with("Expect: miracles"), answer: ok},

		// The answer.
		{name: "fields of an answer", request: post, answer: answers("201 Made", "Content-Length: 0", "Set-Cookie: a=1", "Set-Cookie: b=2", "X-Empty:", "Server: s", "Location: /x", "Date: Fri, 01 Jan 1999 00:00:00 GMT")},
		{name: "hop-by-hop of an answer", request: post, answer: answers("200 OK", "Content-Length: 0", "Connection: X-Hop, X-Two", "X-Hop: 1", "x-two: 2", "Keep-Alive: 5", "Proxy-Authenticate: a", "Proxy-Connection: b", "Upgrade: c", "TE: d")},
		{name: "close", request: post, answer: answers("200 OK", "Connection: close", "Content-Length: 0")},
		{name: "chunks of an answer", request: post, answer: answers("200 OK", "Transfer-Encoding: chunked", "Content-Type: a/b") + "1\r\no\r\n1\r\nk\r\n0\r\n\r\n"},
		{name: "length and chunks of an answer", request: post, answer: answers("200 OK", "Content-Length: 1", "Transfer-Encoding: chunked", "Content-Type: a/b") + "2\r\nok\r\n0\r\n\r\n"},
		{name: "two lengths of an answer", request: post, answer: answers("200 OK", "Content-Length: 1", "Content-Length: 2") + "ok", keyed: unknown},
		{name: "until the end", request: plain, answer: "HTTP/1.0 200 OK\r\nX-Upstream: 1\r\nContent-Type: a/b\r\n\r\nok"},
		{name: "large", request: plain, answer: answers("200 OK", "Content-Type: a/b", fmt.Sprint("Content-Length: ", 100*big)) + strings.Repeat("x", 100*big)},
		{name: "204", request: post, answer: answers("204 No Content")},
		{name: "304", request: plain, answer: answers("304 Not Modified", "ETag: \"a\"", "Content-Length: 7")},
		{name: "HEAD", request: "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", answer: answers("200 OK", "Content-Length: 7", "Content-Type: a/b")},
		{name: "HEAD of chunks", request: "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", answer: answers("200 OK", "Transfer-Encoding: chunked", "Content-Type: a/b")},
		{name: "name with a space in an answer", request: post, answer: answers("200 OK", "X Y: 1", "Content-Length: 0")},
		{name: "odd status", request: post, answer: answers("799 Odd", "Content-Length: 0")},
		{
			name: "status that is none", request: post, answer: answers("099 Odd", "Content-Length: 2") + "ok", // the bare proxy panics
			ours: &transcript{client: "the proxy's own 502"},
		},
		{name: "trailers of an answer", request: post, answer: answers("200 OK", "Transfer-Encoding: chunked", "Trailer: X-A, X-B", "Content-Type: a/b") + "2\r\nok\r\n0\r\nX-A: 1\r\nX-A: 2\r\nX-B: 3\r\n\r\n"},
		{name: "trailers not announced", request: post, answer: answers("200 OK", "Transfer-Encoding: chunked", "Content-Type: a/b") + "2\r\nok\r\n0\r\nX-A: 1\r\n\r\n"},
		{name: "trailers announced or not", request: post, answer: answers("200 OK", "Transfer-Encoding: chunked", "Trailer: X-A", "Content-Type: a/b") + "2\r\nok\r\n0\r\nX-A: 1\r\nX-B: 1\r\n\r\n"},
		{name: "trailers missing", request: post, answer: answers("200 OK", "Transfer-Encoding: chunked", "Trailer: X-A", "Content-Type: a/b") + "2\r\nok\r\n0\r\n\r\n"},
		{
			name: "trailers of an answer that frame", request: post,
			answer: answers("200 OK", "Transfer-Encoding: chunked", "Content-Type: a/b") + "2\r\nok\r\n0\r\nX-A: 1\r\nContent-Length: 7\r\nConnection: X-A\r\n\r\n",
			ours:   &transcript{client: "200\nContent-Type: a/b\nX-Upstream: 1\nchunked\n\nok\n\nX-A: 1"},
		},
		{name: "early hints", request: plain, answer: "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nLink: <b>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ok},
		{
			name: "early hop-by-hop", request: plain, answer: "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n" + ok,
			ours: &transcript{client: "103\nLink: <a>\n\n200\nContent-Length: 2\nContent-Type: a/b\nX-Upstream: 1\n\nok"},
		},

		// Failures of the upstream.
		{name: "no answer", request: post, answer: "", keyed: unknown},
		{name: "no HTTP", request: post, answer: "what?\r\n\r\n", keyed: unknown},
		{name: "malformed field", request: post, answer: answers("200 OK", "X-A: a\x01b", "Content-Length: 0"), keyed: unknown},
		{name: "cut short", request: post, answer: answers("200 OK", "Content-Type: a/b", fmt.Sprint("Content-Length: ", 2*big)) + strings.Repeat("x", big), keyed: unknown},
		{name: "cut between chunks", request: post, answer: answers("200 OK", "Content-Type: a/b", "Transfer-Encoding: chunked") + "2\r\nok\r\n", keyed: unknown},
		{name: "cut within a chunk", request: post, answer: answers("200 OK", "Content-Type: a/b", "Transfer-Encoding: chunked") + "4\r\nok", keyed: unknown},
		{name: "cut in the trailers", request: post, answer: answers("200 OK", "Content-Type: a/b", "Transfer-Encoding: chunked") + "2\r\nok\r\n0\r\nX-A", keyed: unknown},

		// Other protocols.
		{name: "upgrade", request: upgrade("echo"), answer: switched("Connection: Upgrade", "Upgrade: ECHO", "X-Own: 1")},
		{
			name: "upgrade and haste", request: upgrade("echo") + "early ", answer: switched("Connection: Upgrade", "Upgrade: echo"), // the bare proxy loses what came early
			ours: &transcript{client: "101\nConnection: Upgrade\nUpgrade: echo\nX-Upstream: 1\n\nearly hello"},
		},
		{name: "upgrade refused", request: upgrade("echo"), answer: ok},
		{name: "upgrade to another", request: upgrade("echo"), answer: switched("Connection: Upgrade", "Upgrade: other")},
		{name: "upgrade to nothing", request: upgrade("echo"), answer: switched()},
		{name: "upgrade not wished", request: plain, answer: switched("Connection: Upgrade", "Upgrade: echo")},
		{name: "switch that nobody named", request: plain, answer: switched()},
		{
			name: "upgrade with an odd name", request: upgrade("\xe9"), answer: ok, // the bare proxy answers 502
			ours: &transcript{upstream: "GET /base/ HTTP/1.1\n+forwarded", client: "200\nContent-Length: 2\nContent-Type: a/b\nX-Upstream: 1\n\nok"},
		},
		{name: "upgrade that connection does not name", request: "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\n\r\n", answer: ok},
		{
			name: "upgrade of a POST", request: with("Connection: Upgrade", "Upgrade: echo"), answer: switched("Connection: Upgrade", "Upgrade: echo"),
			ours: &transcript{client: "101\nConnection: Upgrade\nUpgrade: echo\nX-Upstream: 1\n\nhello"}, keyed: unknown, // the bare proxy adds a Content-Length
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bare := passes(t, bareProxy, tt.request, tt.answer, tt.early)
			wanted := bare
			if tt.ours != nil {
				wanted = tt.ours.over(bare)
				if wanted == bare {
					t.Errorf("the bare proxy does the same as the gateway:\n%s", bare)
				}
			}
			gateway := passes(t, newGateway, tt.request, tt.answer, tt.early)
			if gateway != wanted {
				t.Errorf("the gateway:\n%s\nwant:\n%s", gateway, wanted)
			}
			if !strings.HasPrefix(tt.request, "POST") || tt.keyed == skip {
				return
			}
			if tt.keyed != nil {
				wanted = tt.keyed.over(wanted)
			}
			wanted = wanted.kept()
			withKey := strings.Replace(tt.request, "\r\n", "\r\nIdempotency-Key: k\r\n", 1)
			keyed := passes(t, newGateway, withKey, tt.answer, tt.early).kept()
			if keyed != wanted {
				t.Errorf("with a key:\n%s\nwant:\n%s", keyed, wanted)
			}
		})
	}
}

var (
	skip       = &transcript{}
	badRequest = &transcript{"-", "the proxy's own 400"}
	unknown    = &transcript{client: "the proxy's own 502"}
)

// transcript is what was seen at both ends of a proxy. In the table, an empty
// part is one that does not differ, and a dash stands for nothing.
type transcript struct{ upstream, client string }

func (s transcript) String() string { return "upstream: " + s.upstream + "\nclient: " + s.client }

// over returns other with what differs.
func (s transcript) over(other transcript) transcript {
	if s.upstream != "" {
		other.upstream = strings.TrimPrefix(s.upstream, "-")
	}
	if s.client != "" {
		other.client = s.client
	}
	return other
}

// kept is what protection leaves as it is: it knows a body's length, and has
// something to say itself.
func (s transcript) kept() transcript {
	drop := func(text string, prefixes ...string) string {
		lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
		})
		return strings.Join(lines, "\n")
	}
	return transcript{
		drop(s.upstream, "content-length:", "transfer-encoding:", "connection:", "upgrade:", "idempotency-key:", "semel-fence:"),
		drop(s.client, "Content-Length:", "chunked", "Idempotency-"),
	}
}

func newGateway(t *testing.T, upstream string) (url string) {
	return newBundle(t, upstream, semel.Policy{}, nil).url
}

func bareProxy(t *testing.T, upstream string) string {
	u, err := url.Parse(upstream)
	noError(t, err)
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			p.SetURL(u)
			p.SetXForwarded()
			p.Out.Header.Del("Semel-Fence")
		},
		Transport: &http.Transport{DisableCompression: true, ExpectContinueTimeout: time.Second},
		ErrorLog:  discard,
	})
	server.Config.ErrorLog = discard
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// passes sends request through a proxy to an upstream that answers with answer.
func passes(t *testing.T, proxy func(t *testing.T, upstream string) string, request, answer string, early bool) transcript {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	var mu sync.Mutex
	var seen []string
	var open []net.Conn
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			serving.Go(func() {
				if told := answerWith(c, answer, early); told != "" {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, told)
				}
			})
		}
	})
	client := clientSees(t, proxy(t, "http://"+l.Addr().String()+"/base"), request)
	_ = l.Close()
	mu.Lock()
	for _, c := range open {
		_ = c.Close()
	}
	mu.Unlock()
	serving.Wait()
	return transcript{strings.ReplaceAll(strings.Join(seen, "\nand again:\n"), l.Addr().String(), "UPSTREAM"), client}
}

// answerWith answers the request on c and tells what it was, if it was whole.
func answerWith(c net.Conn, answer string, early bool) (told string) {
	defer func() { _ = c.Close() }()
	var wire bytes.Buffer
	in := bufio.NewReader(io.TeeReader(c, &wire))
	r, err := http.ReadRequest(in)
	if err != nil {
		return ""
	}
	if early {
		first, rest, _ := strings.Cut(answer, "\r\n\r\n")
		_, _ = io.WriteString(c, first+"\r\n\r\n")
		answer = rest
	}
	body, cut := io.ReadAll(r.Body)
	switch {
	case cut == nil:
		_, _ = io.WriteString(c, answer)
	case !early:
		return "" // what there is of it is a matter of time
	}
	if strings.HasPrefix(answer, "HTTP/1.1 101") {
		rest, _ := io.ReadAll(in)
		_, _ = c.Write(rest)
	}

	head, _, _ := strings.Cut(wire.String(), "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	usual := 0
	for i, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		lines[i+1] = strings.ToLower(name) + ":" + value
	}
	fields := slices.DeleteFunc(lines[1:], func(line string) bool {
		switch line {
		case "host: " + c.LocalAddr().String(), "x-forwarded-for: 127.0.0.1", "x-forwarded-host: a", "x-forwarded-proto: http":
			usual++
			return true
		}
		return false
	})
	slices.Sort(fields)
	told = lines[0] + "\n" + strings.Join(append(fields, ""), "\n") + map[bool]string{true: "+forwarded"}[usual == 4]
	return told + showBody(body, r.Trailer, cut)
}

// clientSees sends request and tells what comes back.
func clientSees(t *testing.T, proxy, request string) (told string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(proxy, "http://"))
	noError(t, err)
	defer func() { _ = c.Close() }()
	noError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(c, request)
	noError(t, err)
	method, _, _ := strings.Cut(request, " ")
	in := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			return told + "nothing"
		}
		informs := res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols
		if res.StatusCode == http.StatusContinue {
			continue // the server may say so too
		}
		if !informs && res.Header.Get("X-Upstream") == "" {
			return told + fmt.Sprintf("the proxy's own %d", res.StatusCode)
		}
		var fields []string
		for name, values := range res.Header {
			for _, v := range values {
				if name != "Date" || strings.Contains(v, "1999") {
					fields = append(fields, name+": "+v)
				}
			}
		}
		slices.Sort(fields)
		if len(res.TransferEncoding) > 0 {
			fields = append(fields, "chunked")
		}
		told += fmt.Sprintf("%d\n%s", res.StatusCode, strings.Join(fields, "\n"))
		if informs {
			told += "\n\n"
			continue
		}
		var body []byte
		if res.StatusCode == http.StatusSwitchingProtocols {
			_, err = io.WriteString(c, "hello")
			noError(t, err)
			noError(t, c.(*net.TCPConn).CloseWrite())
			body, err = io.ReadAll(in)
		} else {
			body, err = io.ReadAll(res.Body)
		}
		if err != nil {
			body = nil // how much there is of it is a matter of buffers
		}
		return told + showBody(body, res.Trailer, err)
	}
}

func showBody(body []byte, trailer http.Header, err error) string {
	if err != nil {
		return "\n\n(cut)"
	}
	told := ""
	if len(body) > 100 {
		body = fmt.Appendf(nil, "%d bytes, digest %x", len(body), crc32.ChecksumIEEE(body))
	}
	if len(body) > 0 {
		told = "\n\n" + string(body)
	}
	var lines []string
	for name, values := range trailer {
		for _, v := range values {
			lines = append(lines, name+": "+v)
		}
	}
	if slices.Sort(lines); len(lines) > 0 {
		told += "\n\n" + strings.Join(lines, "\n")
	}
	return told
}

// TestStreamsBothWays: what has no length passes as it comes, the header first.
func TestStreamsBothWays(t *testing.T) {
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		noError(t, rc.EnableFullDuplex())
		w.Header().Set("Content-Type", "a/b")
		noError(t, rc.Flush())
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, "got "+line)
			_ = rc.Flush()
		}
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	server := httptest.NewUnstartedServer(b.gateway)
	server.EnableHTTP2 = true // over HTTP/1.1, Go's server has no answer begin while a body comes
	server.StartTLS()
	defer server.Close()
	body, send := io.Pipe()
	req, err := http.NewRequest("POST", server.URL, body)
	noError(t, err)
	res, err := server.Client().Do(req)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	answer := bufio.NewReader(res.Body)
	for i := range 3 {
		_, err := fmt.Fprintln(send, i)
		noError(t, err)
		line, err := answer.ReadString('\n')
		noError(t, err)
		want(t, "line", line, fmt.Sprintf("got %d\n", i))
	}
	noError(t, send.Close())
	rest, err := io.ReadAll(answer)
	noError(t, err)
	want(t, "rest", string(rest), "")
}

// TestEventsWithLength: an event stream passes as it comes even if its length is
// known.
func TestEventsWithLength(t *testing.T) {
	arrived := make(chan struct{})
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Length", "18")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-arrived
		_, _ = io.WriteString(w, "data: 2\n\n")
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	res, err := b.client.Do(b.request("POST", "/x", "", "{}"))
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	_, err = io.ReadFull(res.Body, make([]byte, 9))
	noError(t, err)
	close(arrived)
	rest, err := io.ReadAll(res.Body)
	noError(t, err)
	want(t, "rest", string(rest), "data: 2\n\n")
}

// TestClientGoneUnprotected: nobody needs the answer, and nothing depends on it.
func TestClientGoneUnprotected(t *testing.T) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		close(entered)
		<-r.Context().Done()
		close(cancelled)
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	b.breakOff(t, b.request("POST", "/x", "", "{}"), entered)
	<-cancelled
}

// TestWhatStandsAround: what was in the header before the gateway stays beside
// what the upstream says, also after an early answer, as middlewares expect it.
func TestWhatStandsAround(t *testing.T) {
	upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nVary: Upstream\r\nContent-Length: 6\r\n\r\n<html>")
		return true
	})
	b := newBundle(t, upstream.url, semel.Policy{}, nil)
	url := handler(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Around")
		w.Header().Set("X-Around", "1")
		b.gateway.ServeHTTP(w, r)
	})
	req := b.request("GET", "/", "", "")
	req.URL.Host = strings.TrimPrefix(url, "http://")
	a := b.send(req)
	want(t, "body", a.body, "<html>")
	want(t, "Vary", strings.Join(a.header["Vary"], "+"), "Around+Upstream")
	want(t, "X-Around", a.header.Get("X-Around"), "1")
	want(t, "Link of the answer", a.header.Get("Link"), "")
	want(t, "Content-Type", len(a.header["Content-Type"]), 0)
}

// TestBodyEnds: when forward has returned, whoever owns a body that does not wait
// can use it again, whatever the transport is about.
func TestBodyEnds(t *testing.T) {
	for range 1000 {
		r := strings.NewReader("body")
		b := &requestBody{r: r}
		read := make(chan error)
		go func() {
			_, err := b.Read(make([]byte, 8))
			read <- err
		}()
		b.end()
		r.Reset("of another")
		<-read
		if n, err := b.Read(make([]byte, 8)); n != 0 || err == nil {
			t.Fatalf("read %d bytes of an ended body, error %v", n, err)
		}
	}
}

// TestEndOfBodyIsRemembered: the server closes the body when the answer begins,
// which may be before the transport has asked for what comes behind the end.
func TestEndOfBodyIsRemembered(t *testing.T) {
	closed := false
	b := &requestBody{waits: true, r: readerFunc(func([]byte) (int, error) {
		if closed {
			return 0, http.ErrBodyReadAfterClose
		}
		return 1, io.EOF
	})}
	_, err := io.ReadAll(b)
	noError(t, err)
	closed = true
	b.end()
	_, err = io.ReadAll(b)
	noError(t, err)
}

// TestLargerThanOneWrite: the transport's copy of a body that its buffer does not
// hold is counted like every other write.
func TestLargerThanOneWrite(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	c := &conn{Conn: near}
	go func() {
		_, _ = c.ReadFrom(noise(100_000))
		_ = near.Close()
	}()
	got, _ := digest(t, far)
	whole, _ := digest(t, noise(100_000))
	want(t, "what was written", got, whole)
	want(t, "count", c.mark(), 100_000)
	want(t, "sealed", c.seal(0), false)
}

// writesConn counts writes.
type writesConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c *writesConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestOneWrite: what is in memory leaves along with the header.
func TestOneWrite(t *testing.T) {
	var got string
	upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
		got = body
		_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	b := newBundle(t, upstream.url, semel.Policy{}, nil)
	dial := b.gateway.upstream.transport.DialContext
	var writes atomic.Int64
	b.gateway.upstream.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			ours := c.(*conn)
			ours.Conn = &writesConn{ours.Conn, &writes}
		}
		return c, err
	}
	body := strings.Repeat("x", smallBody)
	want(t, "status", b.post("/x", "k", body).status, 201)
	want(t, "body", got, body)
	want(t, "writes", writes.Load(), 1)
}

// TestForwardedProto: the scheme that the client used.
func TestForwardedProto(t *testing.T) {
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto"))
	})
	server := httptest.NewTLSServer(newBundle(t, upstream, semel.Policy{}, nil).gateway)
	defer server.Close()
	res, err := server.Client().Get(server.URL)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	noError(t, err)
	want(t, "X-Forwarded-Proto", string(got), "https")
}

// TestInformsNobody: the transport may still hear of an early answer when it has
// given up, and the writer is not its any more.
func TestInformsNobody(t *testing.T) {
	w := httptest.NewRecorder()
	e := &exchange{w: w, answered: true}
	noError(t, e.inform(http.StatusEarlyHints, textproto.MIMEHeader{"Link": {"<a>"}}))
	want(t, "status", w.Code, 200) // as it was made
	want(t, "fields", len(w.Header()), 0)
}
