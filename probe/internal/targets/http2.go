package targets

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// refuse is how a POST is refused over HTTP/2 while another one is running. By
// RFC 9113 both say that the request was not processed.
type refuse string

const (
	refuseStream refuse = "REFUSED_STREAM"
	goAway       refuse = "GOAWAY"
)

// stream is a request that is not yet whole.
type stream struct {
	method, path, authority string
	header                  http.Header
	body                    bytes.Buffer
}

// peer is one HTTP/2 connection. Requests and responses are small: there is no
// flow control but for giving back what was received.
type peer struct {
	s      *Server
	framer *http2.Framer
	ctx    context.Context

	writing sync.Mutex // around framer's writes and header
	header  bytes.Buffer
	encoder *hpack.Encoder

	streams  map[uint32]*stream
	last     uint32 // that was processed
	leaving  bool   // GOAWAY was sent
	handlers sync.WaitGroup
}

// serveHTTP2 serves a connection until it ends. The standard server decides by
// itself when to refuse a stream; here it has to be at a known moment.
func (s *Server) serveHTTP2(c net.Conn, r *bufio.Reader) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(r, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &peer{s: s, framer: http2.NewFramer(c, r), ctx: ctx, streams: map[uint32]*stream{}}
	p.encoder = hpack.NewEncoder(&p.header)
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	defer p.handlers.Wait()
	defer cancel()
	if p.write(func() error {
		return p.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 250})
	}) != nil {
		return
	}
	for {
		f, err := p.framer.ReadFrame()
		if err != nil || p.handle(f) != nil {
			return
		}
	}
}

func (p *peer) write(f func() error) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	return f()
}

func (p *peer) handle(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingHeaderTableSize); ok {
			p.encoder.SetMaxDynamicTableSizeLimit(v)
		}
		return p.write(p.framer.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return p.write(func() error { return p.framer.WritePing(true, f.Data) })
	case *http2.MetaHeadersFrame:
		st := &stream{method: f.PseudoValue("method"), path: f.PseudoValue("path"), authority: f.PseudoValue("authority"), header: http.Header{}}
		for _, h := range f.RegularFields() {
			st.header.Add(h.Name, h.Value)
		}
		p.streams[f.StreamID] = st
		if f.StreamEnded() {
			return p.complete(f.StreamID)
		}
	case *http2.DataFrame:
		st := p.streams[f.StreamID]
		if st == nil {
			return nil // refused before
		}
		st.body.Write(f.Data())
		if n := f.Length; n > 0 {
			if err := p.write(func() error { return p.framer.WriteWindowUpdate(0, n) }); err != nil {
				return err
			}
		}
		if f.StreamEnded() {
			return p.complete(f.StreamID)
		}
	case *http2.RSTStreamFrame:
		delete(p.streams, f.StreamID)
	}
	return nil
}

// complete processes a request that is whole, or refuses it.
func (p *peer) complete(id uint32) error {
	st := p.streams[id]
	delete(p.streams, id)
	if p.leaving {
		return nil
	}
	post := st.method == http.MethodPost
	p.s.mu.Lock()
	busy := post && p.s.posts > 0
	if post && !busy {
		p.s.posts++
	}
	p.s.mu.Unlock()
	switch {
	case busy && p.s.refuse == goAway:
		p.leaving = true
		last := p.last
		if err := p.write(func() error { return p.framer.WriteGoAway(last, http2.ErrCodeNo, nil) }); err != nil {
			return err
		}
		return nil
	case busy:
		return p.write(func() error { return p.framer.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
	}
	p.last = id
	p.handlers.Go(func() {
		p.answer(id, st, post)
	})
	return nil
}

func (p *peer) answer(id uint32, st *stream, post bool) {
	// Before the response: whoever has it may send the next one.
	over := func() {
		if post {
			p.s.mu.Lock()
			p.s.posts--
			p.s.mu.Unlock()
		}
	}
	req, err := http.NewRequestWithContext(p.ctx, st.method, st.path, bytes.NewReader(st.body.Bytes()))
	if err != nil {
		over()
		_ = p.write(func() error { return p.framer.WriteRSTStream(id, http2.ErrCodeProtocol) })
		return
	}
	req.Header, req.Host, req.Proto, req.ProtoMajor, req.ProtoMinor = st.header, st.authority, "HTTP/2.0", 2, 0
	w := &buffered{header: http.Header{}}
	aborted := w.serve(p.s, req)
	over()
	if aborted {
		_ = p.write(func() error { return p.framer.WriteRSTStream(id, http2.ErrCodeInternal) })
		return
	}
	_ = p.write(func() error {
		p.header.Reset()
		_ = p.encoder.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(w.status)})
		for name, values := range w.header {
			for _, v := range values {
				_ = p.encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: v})
			}
		}
		if err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.header.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
		return p.framer.WriteData(id, true, w.body.Bytes())
	})
}

// buffered is a response in memory.
type buffered struct {
	status int
	header http.Header
	body   bytes.Buffer
}

// serve reports whether the handler gave up without a response.
func (b *buffered) serve(h http.Handler, r *http.Request) (aborted bool) {
	defer func() {
		if v := recover(); v == http.ErrAbortHandler {
			aborted = true
		} else if v != nil {
			panic(v)
		}
	}()
	h.ServeHTTP(b, r)
	b.WriteHeader(http.StatusOK)
	return false
}

func (b *buffered) Header() http.Header { return b.header }

func (b *buffered) WriteHeader(status int) {
	if b.status == 0 {
		b.status = status
	}
}

func (b *buffered) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	return b.body.Write(p)
}
