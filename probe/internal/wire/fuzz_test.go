package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const fuzzLimit = 4096

// FuzzResponseHTTP1: whatever a server says is read within the limit and put into
// exactly one class.
func FuzzResponseHTTP1(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.0 200 OK\r\n\r\nall of it",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 101 Up\r\nUpgrade: x\r\n\r\nraw",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "HTTP/1.1 999 \r\n a: b\r\n\r\n", "\x00\x00\x12\x04",
	} {
		f.Add([]byte(s), "GET")
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), "HEAD")
	f.Fuzz(func(t *testing.T, said []byte, method string) {
		a := &response1{rec: &recorder{r: bytes.NewReader(said), limit: fuzzLimit, over: ErrTooLarge}}
		a.read(method, fuzzLimit)
		if len(a.rec.kept) > fuzzLimit || !bytes.HasPrefix(said, a.rec.kept) {
			t.Errorf("kept %d bytes", len(a.rec.kept))
		}
		checkResponse(t, a.resp, a.err)
		if len(said) <= fuzzLimit && errors.Is(a.err, ErrTooLarge) && len(said) < fuzzLimit {
			t.Error("too large, and it is not")
		}
	})
}

func checkResponse(t *testing.T, r *Response, err error) {
	switch {
	case r == nil && err == nil:
		t.Error("neither a response nor an error")
	case r != nil && r.Truncated != (err != nil):
		t.Errorf("truncated is %v with the error %v", r.Truncated, err)
	case r != nil && len(r.Body) > fuzzLimit:
		t.Errorf("the body has %d bytes", len(r.Body))
	case r != nil && (r.Status < 200 && r.Status != 101 || r.Status > 999):
		t.Errorf("status is %d", r.Status)
	}
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error is in no class: %v", err)
	}
}

// FuzzResponseHTTP2 gives frames to a connection with one request on it.
func FuzzResponseHTTP2(f *testing.F) {
	add := func(write func(fr *http2.Framer, head []byte)) {
		var head bytes.Buffer
		enc := hpack.NewEncoder(&head)
		_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		_ = enc.WriteField(hpack.HeaderField{Name: "content-length", Value: "2"})
		f.Add(frames(func(fr *http2.Framer) {
			_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
			write(fr, head.Bytes())
		}))
	}
	add(func(fr *http2.Framer, head []byte) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head[:2]})
		_ = fr.WriteContinuation(1, true, head[2:])
		_ = fr.WriteData(1, true, []byte("hi"))
	})
	add(func(fr *http2.Framer, head []byte) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
		_ = fr.WriteData(1, false, make([]byte, 5000))
	})
	add(func(fr *http2.Framer, _ []byte) { _ = fr.WriteRSTStream(1, http2.ErrCodeRefusedStream) })
	add(func(fr *http2.Framer, _ []byte) { _ = fr.WriteGoAway(0, http2.ErrCodeNo, []byte("x")) })
	add(func(fr *http2.Framer, _ []byte) {
		_ = fr.WritePing(false, [8]byte{})
		_ = fr.WriteWindowUpdate(1, 1<<30)
	})
	f.Fuzz(func(t *testing.T, said []byte) {
		p := &pipe{Conn: &deadConn{r: bytes.NewReader(said)}}
		h := &conn2{
			c: &conn{Conn: p, pipe: p}, maxResponse: fuzzLimit, done: make(chan struct{}), changed: make(chan struct{}),
			initial: defaultWindow, window: defaultWindow, streams: map[uint32]*stream2{}, nextID: 1, lastID: maxStreamID,
		}
		m, err := Request{Method: http.MethodGet, URL: "http://a.example"}.render()
		if err != nil {
			t.Fatal(err)
		}
		var x Exchange
		st, err := h.open(m, &x, false)
		if err != nil {
			t.Fatal(err)
		}
		h.readAll(context.Background())
		h.conclude(context.Background(), st, nil)
		if len(x.Received) > fuzzLimit {
			t.Errorf("kept %d bytes", len(x.Received))
		}
		if st.ended.IsZero() {
			t.Error("the stream goes on")
		}
		checkResponse(t, x.Response, x.Err)
	})
}

// deadConn is a connection that says what r says, and takes everything.
type deadConn struct {
	net.Conn
	r io.Reader
}

func (c *deadConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *deadConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *deadConn) Close() error                     { return nil }
func (c *deadConn) SetDeadline(time.Time) error      { return nil }
func (c *deadConn) SetWriteDeadline(time.Time) error { return nil }
