package semelhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp/internal/canonjson"
)

// SchemeHTTP is the scheme of fingerprints made with the zero FingerprintConfig. The
// scheme of any other configuration is SchemeHTTP followed by a digest of the
// configuration. So records made before a change of the configuration are not
// compared with requests made after it, and do not mismatch.
const SchemeHTTP = "request/2"

// FingerprintMode says how a body is read.
type FingerprintMode uint8

const (
	// FingerprintAuto reads a body by its Content-Type: application/json and types
	// that end in +json as JSON, application/x-www-form-urlencoded as a form,
	// multipart types as parts, and anything else as raw bytes.
	FingerprintAuto FingerprintMode = iota
	// FingerprintRaw reads every body as raw bytes.
	FingerprintRaw
	// FingerprintJSON reads every body as JSON, whatever its Content-Type.
	FingerprintJSON
)

// FingerprintConfig says what makes two requests the same request. With the zero value
// these are the method, the path, the query and the whole body, read by its
// Content-Type.
type FingerprintConfig struct {
	// Mode says how bodies are read. Default FingerprintAuto.
	Mode FingerprintMode
	// Include and Exclude are JSON pointers (RFC 6901) into JSON bodies. If Include is
	// not empty, only the values that it points to are part of the fingerprint. A
	// missing value differs from every other, even from null. Exclude leaves out
	// values that change from one attempt to the next, such as a time, also from those
	// that are included. Neither applies to bodies that are not read as JSON.
	Include []string
	Exclude []string
	// Headers names request header fields that are part of the fingerprint, by their
	// values in order. Default none. Fields that change from one attempt to the next,
	// such as trace contexts, and credentials and the key are not accepted.
	Headers []string
	// MaxCanonical is the size in bytes of the largest body that is read as JSON or as
	// a form, for which it is held in memory several times over. A larger body is raw:
	// a retry must repeat every byte, and Exclude does not apply. The same content in
	// a body below the limit and in one above it, with more white space, makes two
	// different requests. Multipart bodies have no such limit. Default
	// DefaultMaxCanonical.
	MaxCanonical int64
}

// DefaultMaxCanonical is the default of FingerprintConfig.MaxCanonical.
const DefaultMaxCanonical = 4 << 20

// Validate returns an error that names every setting that cannot be used.
func (c FingerprintConfig) Validate() error {
	_, err := NewFingerprinter(c)
	return err
}

// Fingerprinter makes fingerprints of requests. It is safe for concurrent use.
type Fingerprinter struct {
	scheme  string
	mode    FingerprintMode
	parts   *canonjson.Selection // of a JSON body
	headers []string             // canonical, sorted
	max     int64                // of what is read as JSON or a form
	pool    sync.Pool            // of *digester
}

// NewFingerprinter returns a Fingerprinter for c. The error names every setting that
// cannot be used. The Fingerprinter keeps no reference to c.
func NewFingerprinter(c FingerprintConfig) (*Fingerprinter, error) {
	f := &Fingerprinter{mode: c.Mode, scheme: SchemeHTTP, max: c.MaxCanonical}
	var errs []error
	if f.max == 0 {
		f.max = DefaultMaxCanonical
	}
	if f.max < 0 {
		errs = append(errs, fmt.Errorf("fingerprint MaxCanonical is %d; it must not be negative", f.max))
	}
	if c.Mode > FingerprintJSON {
		errs = append(errs, fmt.Errorf("fingerprint mode %d does not exist", c.Mode))
	}
	if c.Mode == FingerprintRaw && len(c.Include)+len(c.Exclude) > 0 {
		errs = append(errs, errors.New("fingerprint mode raw cannot include or exclude JSON pointers"))
	}
	pointers := func(setting string, texts []string) (sorted []string, parsed []canonjson.Pointer) {
		for _, text := range slices.Compact(slices.Sorted(slices.Values(texts))) {
			p, err := canonjson.ParsePointer(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("fingerprint %s %q %w", setting, text, err))
				continue
			}
			sorted, parsed = append(sorted, text), append(parsed, p)
		}
		return sorted, parsed
	}
	include, included := pointers("include", c.Include)
	exclude, excluded := pointers("exclude", c.Exclude)
	f.parts = canonjson.Select(included, excluded)
	for _, e := range exclude {
		if e == "" {
			errs = append(errs, errors.New(`fingerprint exclude "" would make all bodies equal`))
			continue
		}
		for _, i := range include {
			if within(i, e) {
				errs = append(errs, fmt.Errorf("fingerprint include %q lies within exclude %q", i, e))
			}
		}
		if len(include) > 0 && !slices.ContainsFunc(include, func(i string) bool { return within(e, i) || within(i, e) }) {
			errs = append(errs, fmt.Errorf("fingerprint exclude %q lies outside of all that is included", e))
		}
	}
	for _, name := range c.Headers {
		if why := whyNotFingerprinted(name); why != "" {
			errs = append(errs, fmt.Errorf("fingerprint header %q %s", name, why))
			continue
		}
		f.headers = append(f.headers, textproto.CanonicalMIMEHeaderKey(name))
	}
	slices.Sort(f.headers)
	f.headers = slices.Compact(f.headers)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	if f.mode != FingerprintAuto || len(include)+len(exclude)+len(f.headers) > 0 || f.max != DefaultMaxCanonical {
		sum := sha256.New()
		b := []byte{byte(f.mode)}
		for _, list := range [][]string{include, exclude, f.headers} {
			b = binary.AppendUvarint(b, uint64(len(list)))
			for _, s := range list {
				b = appendString(b, s)
			}
		}
		if f.max != DefaultMaxCanonical {
			b = binary.AppendUvarint(b, uint64(f.max))
		}
		sum.Write(b)
		f.scheme += "-" + hex.EncodeToString(sum.Sum(nil)[:8])
	}
	f.pool.New = func() any { return newDigester() }
	return f, nil
}

// within reports whether the value at pointer p is the one at q, or inside it.
func within(p, q string) bool {
	return strings.HasPrefix(p, q) && (len(p) == len(q) || p[len(q)] == '/')
}

// whyNotFingerprinted says why the named header must not take part, if so.
func whyNotFingerprinted(name string) string {
	lower := strings.ToLower(name)
	switch {
	case !httpfield.IsToken(name):
		return "is not a header name"
	case lower == "idempotency-key":
		return "is part of the identity"
	case lower == "authorization", lower == "cookie", lower == "proxy-authorization":
		return "holds a credential; the actor is part of the scope, and a renewed credential is not another request"
	case lower == "host":
		return "belongs in the scope"
	case lower == "content-type", lower == "content-encoding":
		return "takes part already"
	case lower == "traceparent", lower == "tracestate", lower == "baggage", lower == "b3", strings.HasPrefix(lower, "x-b3-"),
		lower == "uber-trace-id", strings.HasPrefix(lower, "uberctx-"), strings.HasPrefix(lower, "x-datadog-"),
		strings.HasPrefix(lower, "ot-tracer-"), lower == "x-amzn-trace-id", lower == "x-cloud-trace-context",
		lower == "sentry-trace", lower == "grpc-trace-bin", lower == "request-id", lower == "x-request-id", lower == "x-correlation-id":
		return "changes from one try to the next"
	case lower == "date", lower == "content-length", lower == "te", lower == "expect", isHopByHop(textproto.CanonicalMIMEHeaderKey(name)):
		return "belongs to the transfer, not to the request"
	}
	return ""
}

// Scheme returns the scheme of the fingerprints. See SchemeHTTP.
func (f *Fingerprinter) Scheme() string { return f.scheme }

// How the body took part. The byte is in the digest, so a body never equals
// another one that was read in another way.
const (
	bodyRaw       = 'r'
	bodyJSON      = 'j'
	bodyForm      = 'f'
	bodyMultipart = 'm'
)

// Fingerprint returns the fingerprint of a request. body is the whole body as it was
// received, before any decoding. A nil body is empty. Fingerprint does not change it.
//
// The fingerprint is made of the method, without regard to case, and of any
// X-HTTP-Method-Override or similar field, and of the path and the query as they are
// written: %7E is not ~, /a%2Fb is not /a/b, and ?a=1&b=2 is not ?b=2&a=1, because
// their meaning is up to the server, and a retry repeats them. The host is not part
// of it. Servers for several hosts put it into the scope.
//
// It is also made of the media type, without parameters, and of the body:
//
//   - JSON is compared without regard to white space and the order of members.
//     Strings are compared by value, and numbers as they are written: 1.0 is not 1,
//     and 2^53+1 is not 2^53. JSON with repeated member names, invalid UTF-8, lone
//     surrogates, more than 10,000 levels, or a charset other than UTF-8 is raw, as
//     is JSON larger than FingerprintConfig.MaxCanonical.
//   - Forms are compared without regard to escaping and the order of fields, but the
//     values of a field must be in the same order. If a name contains "[]", the order
//     of all fields counts, because servers group them by it. Forms with invalid
//     escapes or an unescaped semicolon, and forms larger than MaxCanonical, are raw.
//   - Multipart bodies are compared by their parts in order, with header and content,
//     without the boundary. Those that are not well-formed are raw.
//   - Raw bodies, and those with a Content-Encoding, are compared byte by byte,
//     together with the Content-Type as it is written and the Content-Encoding.
//
// All empty bodies are the same, whatever their type.
func (f *Fingerprinter) Fingerprint(method string, u *url.URL, header http.Header, body []byte) semel.Fingerprint {
	d := f.begin(method, u, header)
	defer f.put(d)
	if len(body) == 0 {
		d.raw("", "") // nothing has no type
		return f.end(d)
	}
	if !f.canonical(d, header, body) {
		d.raw(contentTypeOf(header), codingOf(header))
		_, _ = d.w.Write(body)
	}
	return f.end(d)
}

// stream begins the fingerprint of a request with a large body, as raw: the body
// is to be written to the digester.
func (f *Fingerprinter) stream(method string, u *url.URL, header http.Header) *digester {
	d := f.begin(method, u, header)
	d.raw(contentTypeOf(header), codingOf(header))
	return d
}

// endStream ends what stream began, once the body is also in the spool. If it is
// more than raw, it is read again from there; the error is the spool's. d is given
// back.
func (f *Fingerprinter) endStream(d *digester, method string, u *url.URL, header http.Header, body *spool) (semel.Fingerprint, error) {
	defer f.put(d)
	_, mediaType := mediaTypeOf(header)
	if codingOf(header) == "" {
		switch f.kind(mediaType) {
		case bodyJSON, bodyForm:
			if body.size() > f.max {
				break
			}
			whole := make([]byte, body.size())
			if _, err := body.ReadAt(whole, 0); err != nil {
				return semel.Fingerprint{}, err
			}
			return f.Fingerprint(method, u, header, whole), nil
		case bodyMultipart:
			d2 := f.begin(method, u, header)
			defer f.put(d2)
			checked := &checkedReader{r: body.reader()}
			ok := d2.multipart(header, checked)
			if checked.err != nil {
				return semel.Fingerprint{}, checked.err
			}
			if ok {
				return f.end(d2), nil
			}
		}
	}
	return f.end(d), nil
}

// checkedReader keeps the error of a reader, io.EOF apart.
type checkedReader struct {
	r   io.Reader
	err error
}

func (c *checkedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// begin writes all but the body.
func (f *Fingerprinter) begin(method string, u *url.URL, header http.Header) *digester {
	d := f.pool.Get().(*digester)
	d.hash.Reset()
	d.w.Reset(d.hash)
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	d.string(methodAsked(method, header))
	d.string(path)
	d.string(u.RawQuery)
	for _, name := range f.headers {
		values := header[name]
		d.int(len(values))
		for _, v := range values {
			d.string(v)
		}
	}
	return d
}

// methodAsked is the method without regard to case, with those that the request
// asks to be taken for.
func methodAsked(method string, header http.Header) string {
	method = strings.ToUpper(method)
	for _, name := range overrides {
		for _, v := range header[name] {
			method += " " + name + ":" + strings.ToUpper(strings.Trim(v, " \t"))
		}
	}
	return method
}

// canonical writes the body if it is of a kind that has a canonical form. If it
// is not, nothing is written.
func (f *Fingerprinter) canonical(d *digester, header http.Header, body []byte) bool {
	if codingOf(header) != "" {
		return false
	}
	contentType, mediaType := mediaTypeOf(header)
	kind := f.kind(mediaType)
	if int64(len(body)) > f.max && kind != bodyMultipart {
		return false
	}
	switch kind {
	case bodyJSON:
		if f.mode != FingerprintJSON && !utf8Charset(contentType) || !d.json.Parse(body, f.parts) {
			return false
		}
		d.kind(bodyJSON, mediaType)
		d.json.Write(d.w, f.parts)
		return true
	case bodyForm:
		if !d.parseForm(body) {
			return false
		}
		d.kind(bodyForm, mediaType)
		d.int(len(d.fields))
		for _, p := range d.fields {
			d.string(p.name)
			d.string(p.value)
		}
		return true
	case bodyMultipart:
		return d.multipart(header, bytes.NewReader(body))
	}
	return false
}

// end returns the fingerprint of what has been written.
func (f *Fingerprinter) end(d *digester) semel.Fingerprint {
	_ = d.w.Flush() // a hash never fails to write
	fp := semel.Fingerprint{Scheme: f.scheme}
	copy(fp.Sum[:], d.hash.Sum(d.sum[:0]))
	return fp
}

func (f *Fingerprinter) kind(mediaType string) byte {
	switch {
	case f.mode == FingerprintRaw:
		return bodyRaw
	case f.mode == FingerprintJSON, mediaType == "application/json", strings.HasSuffix(mediaType, "+json"):
		return bodyJSON
	case mediaType == "application/x-www-form-urlencoded":
		return bodyForm
	case strings.HasPrefix(mediaType, "multipart/"):
		return bodyMultipart
	}
	return bodyRaw
}

// contentTypeOf returns the Content-Type as written. Several lines make no type
// that anything here knows.
func contentTypeOf(h http.Header) string {
	return strings.Trim(strings.Join(h["Content-Type"], ", "), " \t")
}

// mediaTypeOf returns the Content-Type as written, and its type and subtype in
// lower case.
func mediaTypeOf(h http.Header) (contentType, mediaType string) {
	contentType = contentTypeOf(h)
	mediaType, _, _ = strings.Cut(contentType, ";")
	return contentType, strings.ToLower(strings.Trim(mediaType, " \t"))
}

// utf8Charset reports whether a Content-Type leaves the body in UTF-8.
func utf8Charset(contentType string) bool {
	_, params, _ := strings.Cut(contentType, ";")
	params = strings.Trim(params, " \t;")
	if params == "" || strings.EqualFold(params, "charset=utf-8") {
		return true // spares the usual request the parser's map
	}
	_, m, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	charset, ok := m["charset"]
	return !ok || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}

// codingOf returns the Content-Encoding, and "" for identity.
func codingOf(h http.Header) string {
	coding := strings.ToLower(strings.Trim(strings.Join(h["Content-Encoding"], ", "), " \t"))
	if coding == "identity" {
		return ""
	}
	return coding
}
