package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway/internal/spelling"
	"github.com/semelhq/semel/semelhttp"
)

// exchange is one request on its way through the gateway.
type exchange struct {
	send
	w       http.ResponseWriter
	record  string // the record's id; empty if the request is unprotected
	fence   uint64
	upgrade string // the protocol that an unprotected request asks to switch to

	// What the request to the upstream refers to, allocated with the rest.
	url    url.URL
	values [4]string
	small  bytes.Reader

	mu       sync.Mutex
	answered bool // the transport has returned: w is no longer its to write to
}

// forward sends a request on, in an execution if it is protected, and passes the
// answer back.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	e := &exchange{w: w}
	e.trace.GotConn = e.gotConn
	if x, ok := semel.CurrentExecution(ctx); ok {
		e.record, e.fence = x.RecordID(), x.Fence()
	} else {
		// There is no result in what comes after a switch of protocols, and
		// none in what comes before the answer.
		if !g.upstream.http2 { // which has no such switch (RFC 9113 8.6)
			e.upgrade = upgradeType(r.Header)
		}
		e.trace.Got1xxResponse = e.inform
	}
	if h := w.Header(); h["Content-Type"] == nil {
		h["Content-Type"] = nil // or net/http would add one that the upstream did not send
	}
	out, body := g.outbound(r, e)
	if body != nil {
		defer body.end()
	}
	var answered func(int, error)
	if f := g.config.Observer.Forwarding; f != nil {
		answered = f(ctx, Forwarding{Method: r.Method, Upstream: g.upstream.url, Header: out.Header, RecordID: e.record})
	}
	res, err := g.upstream.transport.RoundTrip(out)
	if answered != nil {
		status := 0
		if err == nil {
			status = res.StatusCode
		}
		answered(status, err)
	}
	e.mu.Lock()
	e.answered = true
	e.mu.Unlock()
	if err != nil {
		g.fail(ctx, w, r.Method, e, err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	switch {
	case res.StatusCode < 100: // net/http reads it, but does not write it
		g.fail(ctx, w, r.Method, e, fmt.Errorf("the upstream answered with the status %d", res.StatusCode))
	case res.StatusCode == http.StatusSwitchingProtocols:
		if err := e.switchProtocols(ctx, res); err != nil {
			g.fail(ctx, w, r.Method, e, err)
		}
	default:
		g.answer(ctx, w, r.Method, e, res)
	}
}

// outbound returns the request to the upstream, and its body if that is the
// client's, for forward to end.
//
// The transport repeats a request whose connection broke after it was sent if
// the method is safe, or if it has one of two header fields and a body that is
// empty or can be had again (net/http, Request.isReplayable). It looks for
// their canonical names; on the wire, case does not matter. An alternative
// would be a body of unknown length that turns out empty, but then the upstream
// sees another request.
func (g *Gateway) outbound(in *http.Request, e *exchange) (*http.Request, *requestBody) {
	out := in.WithContext(httptrace.WithClientTrace(in.Context(), &e.trace))
	e.url = url.URL{Path: in.URL.Path, RawPath: in.URL.RawPath, RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	out.URL = &e.url
	(&httputil.ProxyRequest{Out: out}).SetURL(g.upstream.url)
	if g.config.PreserveHost {
		out.Host = in.Host
	}
	out.Header = g.requestHeader(in, e)
	out.Close = false
	out.GetBody = nil
	out.Trailer = nil
	for name := range in.Trailer {
		if !isFraming(name) && !isForwarded(name) {
			if out.Trailer == nil {
				out.Trailer = make(http.Header)
			}
			out.Trailer[name] = in.Trailer[name]
		}
	}
	switch {
	case in.ContentLength == 0 || in.Body == nil:
		out.Body = nil // or the transport looks whether that is so
		if g.upstream.http2 && !isSafe(in.Method) {
			// There the transport repeats what has no body whatever the method,
			// also after errors that leave open whether it was processed.
			out.Body = emptyBody{}
		}
	case e.record != "" && 0 < in.ContentLength && in.ContentLength <= smallBody:
		// The transport knows this type for one that does not block, and
		// writes it along with the header.
		p := make([]byte, in.ContentLength)
		n, _ := io.ReadFull(in.Body, p) // it is in memory
		e.small.Reset(p[:n])
		out.Body = io.NopCloser(&e.small)
	default:
		body := &requestBody{r: in.Body, in: in.Trailer, out: out.Trailer, waits: e.record == ""}
		out.Body = body
		return out, body
	}
	return out, nil
}

// emptyBody is a body that is not known to be empty before it is read.
type emptyBody struct{}

// Read implements io.Reader.
func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }

// Close implements io.Closer.
func (emptyBody) Close() error { return nil }

// smallBody is how large a body may be that is sent in one write with the header.
const smallBody = 4 << 10

// requestHeader returns what the upstream gets of the request's header.
func (g *Gateway) requestHeader(in *http.Request, e *exchange) http.Header {
	h := make(http.Header, len(in.Header)+len(e.values)+1)
	for name, values := range in.Header {
		if !isHopByHop(name) && !isForwarded(name) {
			h[name] = values
		}
	}
	dropListed(h, in.Header["Connection"])
	delete(h, HeaderFence)
	// What follows cannot be taken away by a client's Connection.
	e.values = [4]string{forwardedHost: in.Host, forwardedProto: "http"}
	if in.TLS != nil {
		e.values[forwardedProto] = "https"
	}
	h["X-Forwarded-Host"] = e.value(forwardedHost)
	h["X-Forwarded-Proto"] = e.value(forwardedProto)
	var prior []string
	if g.config.TrustForwarded {
		prior = in.Header["X-Forwarded-For"]
		for _, name := range []string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"} {
			if values, ok := in.Header[name]; ok {
				h[name] = values
			}
		}
	}
	// Who connects over a Unix socket has no address to add.
	client, _, err := net.SplitHostPort(in.RemoteAddr)
	switch said := strings.Join(prior, ", "); {
	case err != nil:
		client = said
	case said != "":
		client = said + ", " + client
	}
	if client != "" {
		e.values[forwardedFor] = client
		h["X-Forwarded-For"] = e.value(forwardedFor)
	}
	if e.record != "" {
		e.values[fenceValue] = strconv.FormatUint(e.fence, 10)
		h[HeaderFence] = e.value(fenceValue)
	}
	if e.upgrade != "" {
		h["Connection"] = []string{"Upgrade"}
		h["Upgrade"] = []string{e.upgrade}
	}
	if hasToken(in.Header["Te"], "trailers") {
		h["Te"] = []string{"trailers"}
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = noUserAgent // or net/http would say that it is one
	}
	if !isSafe(in.Method) {
		hide(h, "Idempotency-Key", "idempotency-key")
		hide(h, "X-Idempotency-Key", "x-idempotency-key")
	}
	return h
}

// The values that are the gateway's own, see exchange.values.
const (
	forwardedFor = iota
	forwardedHost
	forwardedProto
	fenceValue
)

func (e *exchange) value(i int) []string { return e.values[i : i+1 : i+1] }

var noUserAgent = []string{""}

// hide renames a header field to what package http takes for another.
func hide(h http.Header, name, hidden string) {
	if values, ok := h[name]; ok {
		delete(h, name)
		h[hidden] = values
	}
}

func isSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// isHopByHop says of a header field that it belongs to the connection (RFC 9110
// 7.6.1) whether Connection names it or not.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// isForwarded says of a header field that it is for proxies to say, in whatever
// spelling: the upstream may read X_Forwarded_For as it reads X-Forwarded-For.
func isForwarded(name string) bool {
	switch len(name) {
	case len("Forwarded"), len("X-Forwarded-For"), len("X-Forwarded-Host"), len("X-Forwarded-Proto"):
		return spelling.OneOf(name, spelling.Forwarded)
	}
	return false
}

// isFraming says of a field that it must not come in a trailer, because whoever
// puts trailers and header together would read another message (RFC 9110 6.5.1).
func isFraming(name string) bool {
	switch name {
	case "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Host":
		return true
	}
	return isHopByHop(name)
}

// dropListed deletes the header fields that a Connection field names.
func dropListed(h http.Header, connection []string) {
	for _, line := range connection {
		for name := range strings.SplitSeq(line, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)))
		}
	}
}

// dropHopByHop deletes all header fields that belong to the connection.
func dropHopByHop(h http.Header) {
	dropListed(h, h["Connection"])
	for name := range h {
		if isHopByHop(name) {
			delete(h, name)
		}
	}
}

func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// upgradeType is the protocol that a message wants to switch to, or "". Other
// versions of HTTP, and TLS below them, are none: what would be sent by them would
// be requests that pass the gateway unseen.
func upgradeType(h http.Header) string {
	if !hasToken(h["Connection"], "Upgrade") {
		return ""
	}
	protocol := h.Get("Upgrade")
	for i := range len(protocol) {
		if protocol[i] < ' ' || protocol[i] > '~' {
			return "" // there is none with such a name
		}
	}
	for offered := range strings.SplitSeq(protocol, ",") {
		name, _, _ := strings.Cut(textproto.TrimString(offered), "/")
		switch strings.ToLower(name) {
		case "h2c", "h2", "http", "tls":
			return ""
		}
	}
	return protocol
}

// requestBody is the client's body. It is read until forward returns, and not
// closed before: to close it can mean to wait for the client.
type requestBody struct {
	mu      sync.Mutex // held while reading
	r       io.Reader
	in, out http.Header // trailers; those of in have values at the end of r
	waits   bool        // reading can mean to wait for the client
	whole   bool        // r has been read to its end
	ended   atomic.Bool
}

var errBodyEnded = errors.New("gateway: the request's body was read after its answer")

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.whole {
		// The transport looks whether there is more than it was told, by when
		// the server may have closed r, because the answer has begun. As an
		// error that would cut the answer off.
		return 0, io.EOF
	}
	if b.ended.Load() {
		return 0, errBodyEnded
	}
	n, err := b.r.Read(p)
	if err == io.EOF {
		b.whole = true
		for name := range b.out {
			b.out[name] = b.in[name]
		}
	}
	return n, err
}

// Close implements io.Closer for the transport.
func (b *requestBody) Close() error {
	b.ended.Store(true)
	return nil
}

// end makes sure that the body is not read any more. Where that would mean to
// wait, a read may still be under way, which is for the server to end.
func (b *requestBody) end() {
	b.ended.Store(true)
	if !b.waits {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
}

// inform passes an answer on that comes before the answer.
func (e *exchange) inform(status int, header textproto.MIMEHeader) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.answered {
		return nil
	}
	h := e.w.Header()
	before := maps.Clone(h)
	dropHopByHop(http.Header(header))
	merge(h, http.Header(header))
	e.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, before)
	return nil
}

// merge adds the values in src to those in dst.
func merge(dst, src http.Header) {
	for name, values := range src {
		if old := dst[name]; len(old) > 0 {
			values = append(old, values...)
		}
		dst[name] = values
	}
}

// answer passes the upstream's answer on. It panics with http.ErrAbortHandler
// where it cannot be brought to its end and the middleware does not see to it.
func (g *Gateway) answer(ctx context.Context, w http.ResponseWriter, method string, e *exchange, res *http.Response) {
	h := w.Header()
	dropHopByHop(res.Header)
	merge(h, res.Header)
	var announced []string
	for name := range res.Trailer {
		if !isFraming(name) {
			announced = append(announced, name)
		}
	}
	if len(announced) > 0 {
		slices.Sort(announced)
		h["Trailer"] = append(h["Trailer"], strings.Join(announced, ", "))
	}
	w.WriteHeader(res.StatusCode)

	// Nobody knows when more will come of it.
	streams := res.ContentLength < 0 || isEventStream(res.Header)
	switch read, written := copyBody(w, res.Body, streams); {
	case written != nil:
		panic(http.ErrAbortHandler)
	case read != nil:
		g.failed(ctx, e, method, true, true, read)
		if !semelhttp.DeclareIndeterminate(ctx, whyCut(ctx, "the upstream's answer was cut off")) {
			panic(http.ErrAbortHandler) // it is not protected
		}
		return
	}
	// They come only behind a body of unknown length, so the header has left.
	for name, values := range res.Trailer {
		switch {
		case len(values) == 0 || isFraming(name):
		case slices.Contains(announced, name):
			h[name] = append(h[name], values...)
		default:
			h[http.TrailerPrefix+name] = values
		}
	}
}

func isEventStream(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream")
}

// copyBody copies an answer's body; if it streams, each part of it leaves at
// once, and the header before the first. It tells which side has failed.
func copyBody(w http.ResponseWriter, body io.Reader, streams bool) (read, written error) {
	if body == http.NoBody {
		return nil, nil
	}
	client := http.NewResponseController(w)
	if streams {
		_ = client.Flush()
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := body.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return nil, err
			}
			if streams {
				_ = client.Flush()
			}
		}
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// switchProtocols answers with the upstream's switch of protocols and passes on
// what both sides send then, until both have ended, one of them fails or ctx
// ends.
func (e *exchange) switchProtocols(ctx context.Context, res *http.Response) error {
	protocol := upgradeType(res.Header)
	if e.upgrade == "" || !strings.EqualFold(protocol, e.upgrade) {
		return fmt.Errorf("the upstream switched to the protocol %q when %q was asked for", protocol, e.upgrade)
	}
	upstream, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return errors.New("the transport cannot switch protocols")
	}
	client, buffered, err := http.NewResponseController(e.w).Hijack()
	if err != nil {
		return fmt.Errorf("the server cannot switch protocols: %w", err)
	}
	// There is nobody to be told of errors from here on.
	end := func() { _, _ = upstream.Close(), client.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()
	h := e.w.Header()
	dropHopByHop(res.Header)
	merge(h, res.Header)
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{protocol}
	_, _ = fmt.Fprintf(buffered, "HTTP/1.1 101 %s\r\n", http.StatusText(http.StatusSwitchingProtocols))
	_ = h.Write(buffered)
	_, _ = buffered.WriteString("\r\n")
	if buffered.Flush() != nil {
		return nil
	}
	// What the client has sent already. The server's reader must not be asked
	// for more: to it, an end is the end of the request.
	early, _ := buffered.Peek(buffered.Reader.Buffered())
	ended := make(chan bool)
	go func() { ended <- pipe(upstream, io.MultiReader(bytes.NewReader(early), client)) }()
	go func() { ended <- pipe(client, upstream) }()
	if !<-ended {
		end()
	}
	<-ended
	return nil
}

// pipe copies until src ends, and reports whether dst has been told and can still
// be read from.
func pipe(dst io.Writer, src io.Reader) bool {
	if _, err := io.Copy(dst, src); err != nil {
		return false
	}
	half, ok := dst.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
