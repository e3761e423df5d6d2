package semelhttp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/semelhq/semel"
)

// CodecHTTP is the codec of results that are HTTP responses.
const CodecHTTP = "http/1"

// Response headers that the middleware adds. They describe one response and are not
// part of the record.
const (
	// HeaderReplayed is "true" in a response that comes from a record.
	HeaderReplayed = "Idempotency-Replayed"
	// HeaderExpires is the end of the record's retention.
	HeaderExpires = "Idempotency-Expires"
)

// ErrIncompleteBody is the error of EncodeResult if the length of the body is not
// its Content-Length. Such a body was cut off and must not be recorded as complete.
var ErrIncompleteBody = errors.New("semelhttp: the body is not as long as its Content-Length")

// EncodeResult returns the result to record for a response to a request with the
// given method. header is the header at the time of WriteHeader, as described at
// StoredHeader, and trailer is what StoredTrailer returned. The result keeps body,
// which must not be changed afterwards.
//
// The error is ErrIncompleteBody, or says that status is not that of a final
// response.
//
// Content-Length is recorded only for responses without a body: those to HEAD, and
// those with status 304. Otherwise a replay sets it to the length of the body. A
// 204 has none (RFC 9110, section 8.6). A body that was written with a status that
// has none was never sent and is not recorded.
//
// The Label of the result is the status code. Its Reference is the Location of a
// response with a status of 2xx or 303.
func EncodeResult(method string, status int, header, trailer http.Header, body []byte) (semel.Result, error) {
	r, hasBody, err := encodeResult(method, status, nil, header, trailer, int64(len(body)))
	if hasBody {
		r.Body = body
	}
	return r, err
}

// encodeResult is EncodeResult for a body of the given size, which is left out,
// and of a header of which outer is not the handler's. hasBody says that the body
// belongs to the result.
func encodeResult(method string, status int, outer, header, trailer http.Header, size int64) (r semel.Result, hasBody bool, err error) {
	if !isFinal(status) {
		return semel.Result{}, false, fmt.Errorf("semelhttp: status %d is not that of a final response", status)
	}
	noContent := status == http.StatusNoContent
	measured := !noContent && method != http.MethodHead && status != http.StatusNotModified
	var stored, setRoom, addRoom [16]headerField
	set, add := fields(setRoom[:0]), fields(addRoom[:0])
	for _, f := range storedFields(header, stored[:0]) {
		if textproto.CanonicalMIMEHeaderKey(f.name) == "Content-Length" {
			for _, v := range f.values {
				if n, err := strconv.ParseInt(v, 10, 64); measured && (err != nil || n != size) {
					return semel.Result{}, false, ErrIncompleteBody
				}
			}
			if measured || noContent {
				continue
			}
		}
		// What was there before the handler, and is still, is not its own.
		switch before := outer[f.name]; {
		case len(before) > len(f.values) || !slices.Equal(before, f.values[:len(before)]),
			len(before) == 0 && !accumulates(f.name):
			set = append(set, f)
		case len(before) < len(f.values):
			add = append(add, headerField{f.name, f.values[len(before):]})
		}
	}
	for name := range outer {
		if _, ok := header[name]; !ok {
			set = append(set, headerField{name: name}) // the handler took it out
		}
	}
	r = semel.Result{Codec: CodecHTTP, Head: encodeHead(status, set, add, trailer), Label: strconv.Itoa(status)}
	if status/100 == 2 || status == http.StatusSeeOther {
		r.Reference = header.Get("Location")
	}
	return r, measured, nil
}

// isFinal reports whether status can be that of a final response.
func isFinal(status int) bool { return status >= 200 && status <= 999 }

// isHopByHop reports whether a field belongs to a connection and not to a
// response (RFC 9110 7.6.1, and what is older than it).
func isHopByHop(canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization",
		"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// StoredHeader returns a copy of the part of a response header that is recorded:
// all fields except hop-by-hop fields, those that Connection names, Date,
// HeaderReplayed and HeaderExpires. It keeps every value, in order, and the case of
// each name. It keeps names without values, which keep net/http from adding the
// field. It also keeps Set-Cookie, which a replay may leave out.
//
// h must be the header as it is sent: where net/http would detect a Content-Type
// from the first write, the caller has to set it before.
func StoredHeader(h http.Header) http.Header {
	stored := make(http.Header, len(h))
	for _, f := range storedFields(h, nil) {
		stored[f.name] = slices.Clone(f.values)
	}
	return stored
}

// headerField is a field of a header, under its name as somebody wrote it.
type headerField struct {
	name   string
	values []string
}

// fields are those of a header, or some of them. Its methods take what a caller
// holds on its stack.
type fields []headerField

// storedFields appends the fields of StoredHeader to into.
func storedFields(h http.Header, into fields) fields {
	var named map[string]bool
	for name, values := range h {
		if textproto.CanonicalMIMEHeaderKey(name) != "Connection" {
			continue
		}
		for _, v := range values {
			for option := range strings.SplitSeq(v, ",") {
				if named == nil {
					named = map[string]bool{}
				}
				named[textproto.CanonicalMIMEHeaderKey(strings.Trim(option, " \t"))] = true
			}
		}
	}
	for name, values := range h {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if isHopByHop(canonical) || named[canonical] || strings.HasPrefix(name, http.TrailerPrefix) ||
			canonical == "Date" || canonical == HeaderReplayed || canonical == HeaderExpires {
			continue
		}
		into = append(into, headerField{name, values})
	}
	return into
}

// StoredTrailer returns the trailer of a response as net/http would send it: the
// fields that the Trailer header announces, and those with http.TrailerPrefix. sent
// is the header at the time of WriteHeader, and final is the header when the
// handler has returned. StoredTrailer returns nil if there is no trailer.
func StoredTrailer(sent, final http.Header) http.Header {
	var t http.Header
	add := func(name string, values []string) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if len(values) == 0 || isHopByHop(canonical) || canonical == "Content-Length" {
			return
		}
		if t == nil {
			t = http.Header{}
		}
		t[name] = append(t[name], values...)
	}
	for name, values := range final {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	announced := map[string]bool{}
	for _, v := range sent["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t"))
			if !announced[name] {
				announced[name] = true
				add(name, final[name])
			}
		}
	}
	return t
}

// headVersion is the first byte of an encoded head.
const headVersion = 2

// accumulates says of a field that whoever has something to say with it adds a
// value, so that what the handler said stands beside what others have said.
func accumulates(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Set-Cookie", "Vary", "Link", "Server-Timing", "Warning":
		return true
	}
	return false
}

// set has the header say what the fields say.
func (fs fields) set(into http.Header) {
	for _, f := range fs {
		into[f.name] = f.values
	}
}

// add puts the fields' values behind those that are there.
func (fs fields) add(into http.Header) {
	for _, f := range fs {
		into[f.name] = append(into[f.name][:len(into[f.name]):len(into[f.name])], f.values...)
	}
}

// without removes a field, however it is written.
func (fs fields) without(name string) fields {
	return slices.DeleteFunc(fs, func(f headerField) bool { return textproto.CanonicalMIMEHeaderKey(f.name) == name })
}

// EncodeHead returns the encoding of the status, the header and the trailer of a
// response. Equal arguments have equal encodings. It leaves nothing out; see
// StoredHeader.
//
// The encoding is a version byte, the status, the header, the header values that are
// added to those of other middleware, and the trailer. Each of the last three is the
// number of names and, for each in their order, the name, the number of values and
// the values. Numbers are unsigned varints. Strings are preceded by their length.
func EncodeHead(status int, header, trailer http.Header) []byte {
	set := make(fields, 0, len(header))
	for name, values := range header {
		set = append(set, headerField{name, values})
	}
	return encodeHead(status, set, nil, trailer)
}

// encodeHead encodes what is to be set, what is to be added and the trailer. It
// sorts them.
func encodeHead(status int, set, add fields, trailer http.Header) []byte {
	var room [8]headerField
	last := fields(room[:0])
	for name, values := range trailer {
		last = append(last, headerField{name, values})
	}
	b := make([]byte, 0, 16+set.size()+add.size()+last.size())
	b = append(b, headVersion)
	b = binary.AppendUvarint(b, uint64(status))
	b = set.encode(b)
	b = add.encode(b)
	return last.encode(b)
}

// size is about the length of the encoded fields.
func (fs fields) size() (n int) {
	for _, f := range fs {
		n += len(f.name) + 3
		for _, v := range f.values {
			n += len(v) + 2
		}
	}
	return n
}

// encode sorts the fields and appends them to b.
func (fs fields) encode(b []byte) []byte {
	slices.SortFunc(fs, func(a, b headerField) int { return strings.Compare(a.name, b.name) })
	b = binary.AppendUvarint(b, uint64(len(fs)))
	for _, f := range fs {
		b = appendString(b, f.name)
		b = binary.AppendUvarint(b, uint64(len(f.values)))
		for _, v := range f.values {
			b = appendString(b, v)
		}
	}
	return b
}

// ErrBadHead is the error of DecodeHead for bytes that were not made by EncodeHead,
// or were made by a later version.
var ErrBadHead = errors.New("semelhttp: the recorded head of a response cannot be read")

// DecodeHead decodes what EncodeHead has encoded. header is never nil. trailer is
// nil if there is none. The error is ErrBadHead, even if only the status is not that
// of a final response. DecodeHead uses memory in proportion to the length of b.
func DecodeHead(b []byte) (status int, header, trailer http.Header, err error) {
	h, set, add, err := decodeHead(b, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	header = make(http.Header, len(set))
	set.set(header)
	add.add(header)
	return h.status, header, h.trailer, nil
}

// head is a decoded head of a response without its fields.
type head struct {
	status  int
	trailer http.Header
	spare   values // left over
}

// decodeHead decodes a head. Its fields, of which those without values are such
// as the handler removed, and those with values to add, are in room if there is
// enough.
func decodeHead(b []byte, room fields) (h head, set, add fields, err error) {
	if len(b) == 0 || b[0] != headVersion {
		return head{}, nil, nil, ErrBadHead
	}
	d := headDecoder{s: string(b[1:])}
	h.status = d.int(999)
	set = d.fields(room)
	add = d.fields(set[len(set):])
	if trailer := d.fields(nil); len(trailer) > 0 {
		h.trailer = make(http.Header, len(trailer))
		trailer.set(h.trailer)
	}
	if d.bad || d.s != "" || !isFinal(h.status) {
		return head{}, nil, nil, ErrBadHead
	}
	h.spare = d.values
	return h, set, add, nil
}

// values is room for values of header fields, of which there are several to a
// response, so that not each needs a slice of its own.
type values []string

// take returns n of them.
func (v *values) take(n int) []string {
	if n > len(*v) {
		*v = make(values, max(n, 8))
	}
	taken := (*v)[:n:n]
	*v = (*v)[n:]
	return taken
}

// one returns a single value.
func (v *values) one(s string) []string {
	taken := v.take(1)
	taken[0] = s
	return taken
}

// headDecoder consumes s. After anything bad it yields nothing more.
type headDecoder struct {
	s      string
	bad    bool
	values values // room for those to come
}

// int consumes a number of at most limit.
func (d *headDecoder) int(limit int) int {
	var n uint64
	for i := 0; i < len(d.s) && i < binary.MaxVarintLen32; i++ {
		n |= uint64(d.s[i]&0x7f) << (7 * i)
		if d.s[i] < 0x80 {
			d.s = d.s[i+1:]
			if n > uint64(limit) {
				break
			}
			return int(n)
		}
	}
	d.bad, d.s = true, ""
	return 0
}

func (d *headDecoder) string() string {
	n := d.int(len(d.s))
	if n > len(d.s) { // the number itself took bytes too
		d.bad, d.s = true, ""
		return ""
	}
	s := d.s[:n]
	d.s = d.s[n:]
	return s
}

// strings consumes n strings. n may be a lie, but then it is the last.
func (d *headDecoder) strings(n int) []string {
	if n == 0 {
		return nil
	}
	values := d.values.take(n)
	for i := range values {
		values[i] = d.string()
	}
	return values
}

// fields consumes a header and appends it to into.
func (d *headDecoder) fields(into fields) fields {
	names := d.int(len(d.s))
	if d.bad || names > len(d.s)/2 { // a name and a count take two bytes
		d.bad = true
		return nil
	}
	last := ""
	for i := range names {
		name := d.string()
		if i > 0 && name <= last { // not ours, or damaged
			d.bad = true
		}
		last = name
		n := d.int(len(d.s))
		if d.bad || n > len(d.s) {
			d.bad = true
			return nil
		}
		into = append(into, headerField{name, d.strings(n)})
	}
	return into
}
