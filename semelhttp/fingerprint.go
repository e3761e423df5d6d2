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

// SchemeHTTP is the scheme of fingerprints made with the zero
// FingerprintConfig. Any other configuration has a scheme of its own, this
// name with a digest of the configuration behind it: records made before the
// configuration was changed cannot be compared with requests made after it,
// and what cannot be compared is not a mismatch.
const SchemeHTTP = "request/2"

// FingerprintMode says how a body is read.
type FingerprintMode uint8

const (
	// FingerprintAuto goes by the Content-Type: application/json and types
	// that end in +json are JSON, application/x-www-form-urlencoded is a
	// form, multipart types are parts, everything else is raw bytes.
	FingerprintAuto FingerprintMode = iota
	// FingerprintRaw takes every body as the bytes it is.
	FingerprintRaw
	// FingerprintJSON takes every body as JSON, whatever its Content-Type.
	FingerprintJSON
)

// FingerprintConfig says what makes two requests the same request. The zero
// value is ready to use: method, path, query and the whole body, read by its
// Content-Type.
type FingerprintConfig struct {
	// Mode is FingerprintAuto by default.
	Mode FingerprintMode
	// Include and Exclude are JSON pointers (RFC 6901) into JSON bodies. With
	// Include, only the values it points at take part; a value that is not
	// there differs from every value that is, null included. Exclude leaves
	// values out, also out of included ones: a time of sending, an id that
	// the client makes anew for each try. They do not apply to bodies that
	// are not canonical JSON: those take part whole.
	Include []string
	Exclude []string
	// Headers names request headers that take part, by their values in order.
	// None do by default. Headers that change from one try to the next (trace
	// context, credentials, the key itself) are refused.
	Headers []string
	// MaxCanonical is the largest JSON or form body that is read as such, in
	// bytes: it is held in memory meanwhile, several times over. A larger one is
	// raw, so a retry of it must repeat every byte, Exclude does not apply to
	// it, and the same content on the other side of the limit, by its white
	// space, is another request. Multipart bodies have no such limit. Default
	// DefaultMaxCanonical.
	MaxCanonical int64
}

// DefaultMaxCanonical is the default of FingerprintConfig.MaxCanonical.
const DefaultMaxCanonical = 4 << 20

// Validate reports every setting that cannot be used, in one error.
func (c FingerprintConfig) Validate() error {
	_, err := NewFingerprinter(c)
	return err
}

// A Fingerprinter makes fingerprints of requests. It is safe for concurrent
// use.
type Fingerprinter struct {
	scheme  string
	mode    FingerprintMode
	parts   *canonjson.Selection // of a JSON body
	headers []string             // canonical, sorted
	max     int64                // of what is read as JSON or a form
	pool    sync.Pool            // of *digester
}

// NewFingerprinter returns a Fingerprinter for c, or every reason why c cannot
// be used. It keeps no reference to c.
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

// Scheme returns the scheme of f's fingerprints: SchemeHTTP, or a name of its
// own for a configuration other than the zero one.
func (f *Fingerprinter) Scheme() string { return f.scheme }

// How the body took part. The byte is in the digest, so a body never equals
// another one that was read in another way.
const (
	bodyRaw       = 'r'
	bodyJSON      = 'j'
	bodyForm      = 'f'
	bodyMultipart = 'm'
)

// Fingerprint returns the fingerprint of a request. body is the whole body as
// received, before any decoding; nil and empty are the same. It is read only.
//
// The method takes part without regard to case, together with an
// X-HTTP-Method-Override or one of its like. Path and query take part as written:
// %7E is not ~, /a%2Fb is not /a/b, and ?a=1&b=2 is not ?b=2&a=1, for what they mean is up to the server
// behind, and a retry repeats them to the letter. The host does not take part:
// servers that answer for several hosts have it in the scope.
//
// The media type takes part, its parameters do not, and the body as follows:
//
//   - JSON: members in any order, any white space, strings by value. Numbers
//     as written: 1.0 is not 1, and 2^53+1 is not 2^53. JSON with repeated
//     member names, invalid UTF-8, lone surrogates, more than 10,000 levels,
//     or a charset other than UTF-8 is raw.
//     So is JSON that is larger than FingerprintConfig.MaxCanonical.
//   - Forms: fields in any order, the values of each in theirs, without regard
//     to how they are escaped. Where a name holds "[]" the order of all fields
//     counts, because servers group such fields by it. Forms with invalid
//     escapes or an unescaped semicolon, and those larger than MaxCanonical, are
//     raw.
//   - Multipart: the parts in order, with headers and content, without the
//     boundary. Multipart that is not well-formed is raw.
//   - Raw, and bodies with a Content-Encoding: the bytes, the Content-Type as
//     written and the Content-Encoding.
//
// An empty body is the same whatever its type.
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
