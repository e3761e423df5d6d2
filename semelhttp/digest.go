package semelhttp

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/semelhq/semel/semelhttp/internal/canonjson"
)

// keepBytes is the largest buffer that goes back to the pool: larger ones are
// rare and would be held for long.
const keepBytes = 256 << 10

func (f *Fingerprinter) put(d *digester) {
	d.json.Reset(keepBytes)
	clear(d.fields)
	d.fields = d.fields[:0]
	if cap(d.fields) > keepBytes/32 {
		d.fields = nil
	}
	if cap(d.scratch) > keepBytes {
		d.scratch = nil
	}
	d.w.Reset(nil)
	f.pool.Put(d)
}

// digester writes one request into a hash. Everything but the end of the body
// is framed by its length or count, so that no two requests write the same
// bytes.
type digester struct {
	hash    hash.Hash
	parts   hash.Hash // of a multipart body
	inner   hash.Hash // of one part's content
	w       *bufio.Writer
	frame   [binary.MaxVarintLen64]byte
	sum     [sha256.Size]byte
	json    canonjson.Document
	fields  []formField
	scratch []byte
	copy    []byte
}

// Write implements io.Writer, for what comes last and needs no length.
func (d *digester) Write(p []byte) (int, error) { return d.w.Write(p) }

func newDigester() *digester {
	return &digester{hash: sha256.New(), parts: sha256.New(), inner: sha256.New(), w: bufio.NewWriterSize(nil, 4096)}
}

func (d *digester) int(n int) {
	_, _ = d.w.Write(binary.AppendUvarint(d.frame[:0], uint64(n)))
}

func (d *digester) string(s string) {
	d.int(len(s))
	_, _ = d.w.WriteString(s)
}

func (d *digester) bytes(b []byte) {
	d.int(len(b))
	_, _ = d.w.Write(b)
}

func (d *digester) kind(k byte, contentType string) {
	_ = d.w.WriteByte(k)
	d.string(contentType)
}

// raw begins a body that takes part as it is.
func (d *digester) raw(contentType, coding string) {
	d.kind(bodyRaw, contentType)
	d.string(coding)
}

type formField struct{ name, value string }

// maxFields bounds the time and memory that a body of very many very small
// form fields or parts could take. A body with more is raw.
const maxFields = 10_000

// parseForm reads an application/x-www-form-urlencoded body into d.fields.
func (d *digester) parseForm(body []byte) bool {
	if bytes.Count(body, []byte("&")) >= maxFields || bytes.IndexByte(body, ';') >= 0 {
		return false
	}
	rest, ordered := string(body), false
	for rest != "" {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			return false
		}
		d.fields = append(d.fields, formField{name, value})
		ordered = ordered || strings.Contains(name, "[]")
	}
	if !ordered {
		slices.SortStableFunc(d.fields, func(a, b formField) int { return strings.Compare(a.name, b.name) })
	}
	return true
}

// multipart writes a multipart body, if it is well-formed; otherwise nothing.
// No part is held in memory.
func (d *digester) multipart(header http.Header, body io.Reader) bool {
	contentType, mediaType := mediaTypeOf(header)
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" {
		return false
	}
	r := multipart.NewReader(body, params["boundary"])
	delete(params, "boundary")
	if d.copy == nil {
		d.copy = make([]byte, 4096)
	}
	d.parts.Reset()
	for n := 0; ; n++ {
		// Raw: decoding is the reader's business, and the header that names
		// the coding takes part.
		part, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil || n == maxFields {
			return false
		}
		d.inner.Reset()
		if _, err := io.CopyBuffer(d.inner, part, d.copy); err != nil {
			return false
		}
		b := append(d.scratch[:0], 1)
		b = binary.AppendUvarint(b, uint64(len(part.Header)))
		for _, name := range sortedNames(part.Header) {
			b = appendString(b, name)
			b = binary.AppendUvarint(b, uint64(len(part.Header[name])))
			for _, v := range part.Header[name] {
				b = appendString(b, v)
			}
		}
		d.scratch = d.inner.Sum(b)
		_, _ = d.parts.Write(d.scratch)
	}
	d.kind(bodyMultipart, mediaType)
	d.int(len(params))
	for _, name := range sortedNames(params) {
		d.string(name)
		d.string(params[name])
	}
	d.bytes(d.parts.Sum(d.scratch[:0]))
	return true
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
