package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Protocol is an HTTP version, as asked for or as spoken.
type Protocol uint8

const (
	// Auto is what a server that is asked picks: HTTP/2 or HTTP/1.1 by ALPN
	// for https, HTTP/1.1 for http.
	Auto Protocol = iota
	// HTTP1 is HTTP/1.1 (RFC 9112).
	HTTP1
	// HTTP2 is HTTP/2 (RFC 9113): by ALPN for https, by prior knowledge for http.
	HTTP2
)

func (p Protocol) String() string {
	switch p {
	case HTTP1:
		return "HTTP/1.1"
	case HTTP2:
		return "HTTP/2"
	}
	return "auto"
}

// Field is one line of a header.
type Field struct{ Name, Value string }

// Request is a request, whole. The bytes on the wire are a function of its
// fields: it is rendered the same way for each send. Sending reads it and
// changes nothing; the caller must not change it while a send goes on.
type Request struct {
	Method string
	// URL is absolute, http or https, and says where to connect. Path and
	// query go out as written; a fragment does not. A name outside of ASCII
	// has to be given in its xn-- form. User and password are refused: they
	// belong in a header.
	URL string
	// Header goes out in this order and, with HTTP/1.1, in this spelling.
	// HTTP/2 wants lower case, carries Host as :authority, and forbids the
	// fields that are about a connection (Connection, Keep-Alive,
	// Proxy-Connection, Upgrade, TE other than trailers): those are left out.
	//
	// Two fields are added where they are missing: Host, before all others,
	// and Content-Length, after them, if there is a body or if the method is
	// POST, PUT or PATCH. A Content-Length has to be that of the Body, and
	// Transfer-Encoding is refused. A body is sent without waiting, whatever
	// Expect says.
	Header []Field
	Body   []byte
	// Protocol is which version to speak. A server that does not speak it
	// gets nothing.
	Protocol Protocol
}

// Validate returns what is wrong with the request, all of it. Its text holds
// names of fields, never their values.
func (r Request) Validate() error {
	_, err := r.render()
	return err
}

// Bytes renders the request as it would go out with HTTP/1.1. It is for dry
// runs; sending calls it too.
func (r Request) Bytes() ([]byte, error) {
	m, err := r.render()
	if err != nil {
		return nil, err
	}
	return m.bytes(), nil
}

// message is a rendered request.
type message struct {
	req    Request
	secure bool
	host   string // as to be looked up
	addr   string // host:port, as in the allow-list
	target string // path and query
	head   []byte // HTTP/1.1: request line and header, with the empty line
	fields []hpack.HeaderField
	block  []byte // HTTP/2: the header block, the same at any place in any connection
}

func (m *message) bytes() []byte {
	return append(bytes.Clone(m.head), m.req.Body...)
}

func (r Request) render() (*message, error) {
	m := &message{req: r}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	authority := ""
	if why := m.setURL(r.URL, &authority); why != "" {
		bad("URL: %s", why)
	}
	switch {
	case !httpguts.ValidHeaderFieldName(r.Method): // also a token
		bad("Method: %q is not a method", r.Method)
	case r.Method == "CONNECT":
		bad("Method: CONNECT asks for a tunnel")
	}
	if r.Protocol > HTTP2 {
		bad("Protocol: %d is unknown", r.Protocol)
	}

	hosts, lengths := 0, 0
	for i, f := range r.Header {
		if !httpguts.ValidHeaderFieldName(f.Name) {
			bad("Header[%d]: the name %q is not a field name", i, f.Name)
			continue
		}
		if strings.ContainsAny(f.Value, "\r\n\x00") {
			bad("Header[%d]: the value of %s contains CR, LF or NUL", i, f.Name)
		}
		switch strings.ToLower(f.Name) {
		case "host":
			hosts++
			if authority = f.Value; !httpguts.ValidHostHeader(f.Value) {
				bad("Header[%d]: the value of %s is not a host", i, f.Name)
			}
		case "content-length":
			lengths++
			if f.Value != strconv.Itoa(len(r.Body)) {
				bad("Header[%d]: %s is not the length of the body, %d", i, f.Name, len(r.Body))
			}
		case "transfer-encoding":
			bad("Header[%d]: %s is not supported; the body goes out as it is", i, f.Name)
		}
	}
	if hosts > 1 {
		bad("Header: Host is given %d times", hosts)
	}
	if lengths > 1 {
		bad("Header: Content-Length is given %d times", lengths)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("wire: invalid request: %w", errors.Join(errs...))
	}

	header := r.Header
	if hosts == 0 {
		header = append([]Field{{"Host", authority}}, header...)
	}
	if lengths == 0 && (len(r.Body) > 0 || r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH") {
		header = append(header[:len(header):len(header)], Field{"Content-Length", strconv.Itoa(len(r.Body))})
	}
	m.render1(header)
	m.render2(header, authority)
	return m, nil
}

// setURL takes the URL apart, without ever writing it anew: an encoder might
// change its spelling.
func (m *message) setURL(raw string, authority *string) (why string) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "it cannot be parsed" // the error would quote it
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Sprintf("the scheme is %q; it has to be http or https", u.Scheme)
	case u.User != nil:
		return "it contains a user; put credentials in a header"
	case u.Hostname() == "":
		return "it has no host"
	}
	m.secure = u.Scheme == "https"
	port := u.Port()
	if port == "" {
		if port = "80"; m.secure {
			port = "443"
		}
	}
	addr, err := canonicalAddr(net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err.Error()
	}
	m.addr = addr
	m.host, _, _ = net.SplitHostPort(addr)

	_, rest, _ := strings.Cut(raw, "://")
	rest, _, _ = strings.Cut(rest, "#")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	*authority, m.target = rest[:end], rest[end:]
	if !strings.HasPrefix(m.target, "/") {
		m.target = "/" + m.target
	}
	for _, c := range []byte(m.target) {
		if c <= ' ' || c >= 0x7f {
			return "path and query have to be visible ASCII; encode everything else"
		}
	}
	return ""
}

// canonicalAddr returns host:port as it is compared: in lower case, and an IP
// address in its usual form.
func canonicalAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
		return "", fmt.Errorf("%q is not a port", port)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(ip.String(), port), nil
	}
	if host == "" {
		return "", errors.New("the host is empty")
	}
	for _, c := range []byte(host) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_') {
			return "", fmt.Errorf("%q is not a host name or an IP address", host)
		}
	}
	return net.JoinHostPort(strings.ToLower(host), port), nil
}

func (m *message) render1(header []Field) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", m.req.Method, m.target)
	for _, f := range header {
		b.WriteString(f.Name)
		b.WriteString(": ")
		b.WriteString(f.Value)
		b.WriteString("\r\n")
	}
	b.WriteString("\r\n")
	m.head = b.Bytes()
}

func (m *message) render2(header []Field, authority string) {
	scheme := "http"
	if m.secure {
		scheme = "https"
	}
	m.fields = []hpack.HeaderField{
		{Name: ":method", Value: m.req.Method},
		{Name: ":authority", Value: authority},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: m.target},
	}
	for _, f := range header {
		name := strings.ToLower(f.Name)
		switch name {
		case "host", "connection", "keep-alive", "proxy-connection", "upgrade":
			continue
		case "te":
			if !strings.EqualFold(f.Value, "trailers") {
				continue
			}
		}
		// HTTP/2 forbids white space around a value.
		m.fields = append(m.fields, hpack.HeaderField{Name: name, Value: strings.Trim(f.Value, " \t")})
	}
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, f := range m.fields {
		// Without indexing, a block depends on nothing that was sent before
		// it in the connection, and leaves nothing behind.
		f.Sensitive = true
		_ = enc.WriteField(f) // writes to memory
	}
	m.block = b.Bytes()
}
