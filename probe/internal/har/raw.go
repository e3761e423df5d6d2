package har

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/semelhq/semel/probe/internal/wire"
)

// maxUnpacked is how much of a compressed body is searched for secrets, in bytes.
const maxUnpacked = 32 << 20

// body returns a body without secrets. One that cannot be searched is withheld.
func (r *Redactor) body(b []byte, coding string) []byte {
	coding = strings.ToLower(strings.TrimSpace(coding))
	if len(b) == 0 {
		return b
	}
	if coding == "" || coding == "identity" {
		s := string(b)
		if out := r.Text(s); out != s {
			return []byte(out)
		}
		return b
	}
	if coding == "gzip" {
		if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			plain, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
			if s := string(plain); err == nil && len(plain) <= maxUnpacked && s == r.Text(s) {
				return b
			}
		}
	}
	if !r.knows() && coding != "gzip" {
		return b
	}
	return fmt.Appendf(nil, "withheld: %d bytes in the coding %q, which may hold a secret", len(b), r.String(coding))
}

// raw returns what was sent and received without secrets: the very bytes where
// there are none.
func (r *Redactor) raw(x wire.Exchange) (sent, received []byte) {
	var coding string
	for _, f := range x.Request.Header {
		if strings.EqualFold(f.Name, "Content-Encoding") {
			coding = f.Value
		}
	}
	if x.Protocol == wire.HTTP2 {
		return r.sent2(x, coding), r.received2(x)
	}
	return r.sent1(x, coding), r.received1(x)
}

var headEnd = []byte("\r\n\r\n")

// Message returns an HTTP/1.1 request without secrets.
func (r *Redactor) Message(b []byte) []byte {
	return r.sent1(wire.Exchange{Sent: b}, "")
}

func (r *Redactor) sent1(x wire.Exchange, coding string) []byte {
	head, body, whole := bytes.Cut(x.Sent, headEnd)
	out := r.head1(head)
	if whole {
		out = append(append(out, headEnd...), r.body(body, coding)...)
	}
	return out
}

func (r *Redactor) received1(x wire.Exchange) []byte {
	var out []byte
	rest := x.Received
	heads := 1
	if x.Response != nil {
		heads += len(x.Response.Interim)
	}
	for ; heads > 0; heads-- {
		head, after, whole := bytes.Cut(rest, headEnd)
		out = append(out, r.head1(head)...)
		if !whole {
			return out
		}
		out, rest = append(out, headEnd...), after
	}
	if x.Response == nil {
		return append(out, r.body(rest, "unknown")...)
	}
	body := x.Response.Body
	plain := r.body(body, x.Response.Header.Get("Content-Encoding"))
	hidden := !bytes.Equal(plain, body)
	for _, f := range fieldsOf(x.Response.Trailer) {
		hidden = hidden || r.Field(f.Name, f.Value) != f.Value || r.FieldName(f.Name) != f.Name
	}
	switch {
	case bytes.HasPrefix(rest, body) && len(x.Response.Trailer) == 0: // not chunked, or without a chunk
		return append(append(out, plain...), r.Bytes(rest[len(body):])...)
	case !hidden && bytes.Equal(r.Bytes(rest), rest):
		return append(out, rest...)
	}
	// A secret may lie across two chunks: write the body as one.
	out = fmt.Appendf(out, "%x\r\n%s\r\n", len(plain), plain)
	if x.Response.Truncated {
		return out
	}
	out = append(out, "0\r\n"...)
	for _, f := range fieldsOf(x.Response.Trailer) {
		out = fmt.Appendf(out, "%s: %s\r\n", r.FieldName(f.Name), r.Field(f.Name, f.Value))
	}
	return append(out, "\r\n"...)
}

// frame is an HTTP/2 frame, taken apart.
type frame struct {
	head    [9]byte
	payload []byte
}

func (f frame) kind() http2.FrameType { return http2.FrameType(f.head[3]) }

func splitFrames(b []byte) (fs []frame) {
	for len(b) >= 9 {
		n := int(binary.BigEndian.Uint32(append([]byte{0}, b[:3]...)))
		var f frame
		copy(f.head[:], b)
		b = b[9:]
		n = min(n, len(b))
		f.payload, b = b[:n:n], b[n:]
		fs = append(fs, f)
	}
	return fs
}

// rewrite writes the frames anew, with other header blocks and another body.
// Blocks are written without Huffman coding and without a table, each in one
// HEADERS frame, and the body in the first DATA frame.
func rewrite(fs []frame, blocks [][]byte, body []byte) (out []byte) {
	put := func(f frame, flags byte, payload []byte) {
		n := len(payload)
		f.head[0], f.head[1], f.head[2], f.head[4] = byte(n>>16), byte(n>>8), byte(n), flags
		out = append(append(out, f.head[:]...), payload...)
	}
	for _, f := range fs {
		flags := f.head[4]
		switch f.kind() {
		case http2.FrameHeaders:
			var block []byte
			if len(blocks) > 0 {
				block, blocks = blocks[0], blocks[1:]
			}
			put(f, flags&byte(http2.FlagHeadersEndStream)|byte(http2.FlagHeadersEndHeaders), block)
		case http2.FrameContinuation:
		case http2.FrameData:
			put(f, flags&byte(http2.FlagDataEndStream), body)
			body = nil
		case http2.FrameGoAway:
			put(f, flags, f.payload[:min(8, len(f.payload))]) // without its debug text
		default:
			put(f, flags, f.payload)
		}
	}
	return out
}

func literal(name, value string) []byte {
	number := func(b []byte, n int) []byte { // RFC 7541, 5.1, with a prefix of 7 bits
		if n < 127 {
			return append(b, byte(n))
		}
		b = append(b, 127)
		for n -= 127; n >= 128; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		return append(b, byte(n))
	}
	b := append(number([]byte{0}, len(name)), name...)
	return append(number(b, len(value)), value...)
}

func (r *Redactor) sent2(x wire.Exchange, coding string) []byte {
	fs := splitFrames(x.Sent)
	var block, body []byte
	for _, f := range fs {
		switch f.kind() {
		case http2.FrameHeaders, http2.FrameContinuation:
			block = append(block, f.payload...)
		case http2.FrameData:
			body = append(body, f.payload...)
		}
	}
	fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
	changed := err != nil
	var anew []byte
	for _, f := range fields {
		name, v := f.Name, ""
		if f.IsPseudo() {
			v = r.URL(f.Value)
		} else {
			name, v = r.FieldName(f.Name), r.Field(f.Name, f.Value)
		}
		changed = changed || name != f.Name || v != f.Value
		anew = append(anew, literal(name, v)...)
	}
	plain := r.body(body, coding)
	if !changed && bytes.Equal(plain, body) {
		return x.Sent
	}
	return rewrite(fs, [][]byte{anew}, plain)
}

func (r *Redactor) received2(x wire.Exchange) []byte {
	if !r.knows() && len(r.names) == 0 {
		return x.Received
	}
	fs := splitFrames(x.Received)
	if x.Response == nil {
		return rewrite(fs, nil, nil)
	}
	var blocks [][]byte
	changed := false
	block := func(status int, h http.Header) {
		var b []byte
		if status != 0 {
			b = literal(":status", strconv.Itoa(status))
		}
		for _, f := range fieldsOf(h) {
			name := strings.ToLower(f.Name)
			plain, v := r.FieldName(name), r.Field(name, f.Value)
			changed = changed || plain != name || v != f.Value
			b = append(b, literal(plain, v)...)
		}
		blocks = append(blocks, b)
	}
	for _, status := range x.Response.Interim {
		changed = true // its fields are not known, so they are left out
		block(status, nil)
	}
	block(x.Response.Status, x.Response.Header)
	block(0, x.Response.Trailer)
	plain := r.body(x.Response.Body, x.Response.Header.Get("Content-Encoding"))
	if !changed && bytes.Equal(plain, x.Response.Body) {
		return x.Received
	}
	return rewrite(fs, blocks, plain)
}

// fieldsOf returns the fields in the order of their names.
func fieldsOf(h http.Header) []wire.Field {
	fs := []wire.Field{}
	for name, values := range h {
		for _, v := range values {
			fs = append(fs, wire.Field{Name: name, Value: v})
		}
	}
	slices.SortStableFunc(fs, func(a, b wire.Field) int { return strings.Compare(a.Name, b.Name) })
	return fs
}
