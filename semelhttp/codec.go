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

// CodecHTTP names the encoding of results that are HTTP responses.
const CodecHTTP = "http/1"

// Response headers of our own. They tell of one answer, not of the result, and
// are never part of a record.
const (
	// HeaderReplayed is "true" on an answer that comes from a record.
	HeaderReplayed = "Idempotency-Replayed"
	// HeaderExpires says when the record stops answering.
	HeaderExpires = "Idempotency-Expires"
)

// ErrIncompleteBody is EncodeResult's answer to a body that is not as long as
// its Content-Length says. It was cut short and must not be recorded as whole.
var ErrIncompleteBody = errors.New("semelhttp: the body is not as long as its Content-Length")

// EncodeResult makes a result of the response to a request with the given
// method. header is the header as of WriteHeader, see StoredHeader; trailer
// is what StoredTrailer returned. The result keeps body, which must not change
// afterwards.
//
// The error is ErrIncompleteBody, or says that status is not one of a final
// response; neither can be recorded as a result.
//
// Content-Length is not recorded where it only repeats the length of the
// body: who replays sets it from there. It is kept where there is no body to
// measure, in answers to HEAD and with status 304. A 204 has none (RFC 9110
// 8.6). What a handler wrote under a status without a body was never sent and
// is not recorded.
//
// Label is the status code. Reference is the Location where that names what
// came of the request: with a 2xx and with 303.
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
	stored := storedFields(header)
	noContent := status == http.StatusNoContent
	measured := !noContent && method != http.MethodHead && status != http.StatusNotModified
	for name, values := range stored {
		if textproto.CanonicalMIMEHeaderKey(name) != "Content-Length" {
			continue
		}
		for _, v := range values {
			if n, err := strconv.ParseInt(v, 10, 64); measured && (err != nil || n != size) {
				return semel.Result{}, false, ErrIncompleteBody
			}
		}
		if measured || noContent {
			delete(stored, name)
		}
	}
	h := head{status: status, set: stored, trailer: trailer}
	h.leaveOut(outer)
	h.removed(outer, header)
	r = semel.Result{Codec: CodecHTTP, Head: h.encode(), Label: strconv.Itoa(status)}
	if status/100 == 2 || status == http.StatusSeeOther {
		r.Reference = header.Get("Location")
	}
	return r, measured, nil
}

// isFinal reports whether status can be that of a final response.
func isFinal(status int) bool { return status >= 200 && status <= 999 }

// hopByHop are the fields that belong to a connection and not to a response
// (RFC 9110 7.6.1, and what is older than it).
var hopByHop = map[string]bool{
	"Connection":                true,
	"Keep-Alive":                true,
	"Proxy-Authenticate":        true,
	"Proxy-Authentication-Info": true,
	"Proxy-Authorization":       true,
	"Proxy-Connection":          true,
	"Te":                        true,
	"Trailer":                   true,
	"Transfer-Encoding":         true,
	"Upgrade":                   true,
}

func isHopByHop(canonical string) bool { return hopByHop[canonical] }

// StoredHeader returns a copy of the part of a response header that is
// recorded: all but hop-by-hop fields, those that Connection names, Date,
// HeaderReplayed and HeaderExpires. Every value is kept, in order, and so is
// the form of each name. A name without values is kept: net/http understands
// it as "do not add this field", and a replay must not add it either.
//
// Set-Cookie is kept too; who replays decides to whom.
//
// h must be what goes on the wire: net/http makes up a Content-Type at the
// first write if there is none, from no more than that write, so the recorder
// has to do the same before.
func StoredHeader(h http.Header) http.Header {
	stored := storedFields(h)
	for name, values := range stored {
		stored[name] = slices.Clone(values)
	}
	return stored
}

// storedFields is StoredHeader with the values shared.
func storedFields(h http.Header) http.Header {
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
	stored := make(http.Header, len(h))
	for name, values := range h {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if isHopByHop(canonical) || named[canonical] || strings.HasPrefix(name, http.TrailerPrefix) ||
			canonical == "Date" || canonical == HeaderReplayed || canonical == HeaderExpires {
			continue
		}
		stored[name] = values
	}
	return stored
}

// StoredTrailer returns the trailers of a response whose header was sent as of
// WriteHeader and final when its handler returned, as net/http would send
// them: the fields that the Trailer header announced, and those under
// http.TrailerPrefix. It returns nil if there are none.
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

// head is the head of a response, as far as it is the handler's.
type head struct {
	status  int
	set     http.Header // a name without values is one that the handler removed
	add     http.Header // values behind those that are there
	trailer http.Header
}

// accumulates says of a field that whoever has something to say with it adds a
// value, so that what the handler said stands beside what others have said.
func accumulates(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Set-Cookie", "Vary", "Link", "Server-Timing", "Warning":
		return true
	}
	return false
}

// leaveOut removes from h.set what was there before the handler ran, and has
// not been changed by it.
func (h *head) leaveOut(outer http.Header) {
	for name, values := range h.set {
		before := outer[name]
		if len(before) > len(values) || !slices.Equal(before, values[:len(before)]) {
			continue // replaced
		}
		if len(before) == 0 && !accumulates(name) {
			continue
		}
		delete(h.set, name)
		if added := values[len(before):]; len(added) > 0 {
			if h.add == nil {
				h.add = http.Header{}
			}
			h.add[name] = added
		}
	}
}

// removed notes the names that were there before the handler, and which it took
// out of the header.
func (h *head) removed(outer, sent http.Header) {
	for name := range outer {
		if _, ok := sent[name]; !ok {
			h.set[name] = nil
		}
	}
}

// merge puts the head into a header in which there is what others have to say
// about the answer at hand.
func (h *head) merge(into http.Header) {
	for name, values := range h.set {
		into[name] = values
	}
	for name, values := range h.add {
		into[name] = append(into[name][:len(into[name]):len(into[name])], values...)
	}
}

// drop removes a field, however it is written.
func (h *head) drop(name string) {
	for _, fields := range []http.Header{h.set, h.add, h.trailer} {
		for n := range fields {
			if textproto.CanonicalMIMEHeaderKey(n) == name {
				delete(fields, n)
			}
		}
	}
}

// EncodeHead encodes the head of a response: the status, and every name of
// header and trailer with all its values in order. Equal heads have equal
// encodings. It leaves nothing out; see StoredHeader.
//
// The encoding is a version byte, the status, the header, the values that go
// behind those that others have set, and the trailer. Each of the three is its
// number of names and, in the order of the names, the name, the number of values
// and the values. Numbers are unsigned varints; strings have their length before
// them.
func EncodeHead(status int, header, trailer http.Header) []byte {
	h := head{status: status, set: header, trailer: trailer}
	return h.encode()
}

func (h *head) encode() []byte {
	b := make([]byte, 0, 16+headerBytes(h.set)+headerBytes(h.add)+headerBytes(h.trailer))
	b = append(b, headVersion)
	b = binary.AppendUvarint(b, uint64(h.status))
	b = appendHeader(b, h.set)
	b = appendHeader(b, h.add)
	return appendHeader(b, h.trailer)
}

// headerBytes is about the length of an encoded header.
func headerBytes(h http.Header) int {
	n := 0
	for name, values := range h {
		n += len(name) + 3
		for _, v := range values {
			n += len(v) + 2
		}
	}
	return n
}

func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	if len(h) == 0 {
		return b
	}
	for _, name := range sortedNames(h) {
		b = appendString(b, name)
		b = binary.AppendUvarint(b, uint64(len(h[name])))
		for _, v := range h[name] {
			b = appendString(b, v)
		}
	}
	return b
}

// ErrBadHead is DecodeHead's answer to bytes that EncodeHead did not make, or
// a later version did.
var ErrBadHead = errors.New("semelhttp: the recorded head of a response cannot be read")

// DecodeHead is the inverse of EncodeHead. header is never nil; trailer is nil
// if there is none. The error is ErrBadHead, also for a status that a final
// response cannot have; it takes memory in proportion to b at most.
func DecodeHead(b []byte) (status int, header, trailer http.Header, err error) {
	h, err := decodeHead(b)
	if err != nil {
		return 0, nil, nil, err
	}
	header = h.set
	if header == nil {
		header = http.Header{}
	}
	h.merge(header)
	return h.status, header, h.trailer, nil
}

func decodeHead(b []byte) (h head, err error) {
	if len(b) == 0 || b[0] != headVersion {
		return head{}, ErrBadHead
	}
	d := headDecoder{s: string(b[1:])}
	h.status = d.int(999)
	h.set, h.add, h.trailer = d.header(), d.header(), d.header()
	if d.bad || d.s != "" || !isFinal(h.status) {
		return head{}, ErrBadHead
	}
	return h, nil
}

// headDecoder consumes s. After anything bad it yields nothing more.
type headDecoder struct {
	s      string
	bad    bool
	values []string // room for those to come
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
	if n > len(d.values) {
		d.values = make([]string, max(n, min(16, len(d.s))))
	}
	values := d.values[:n:n]
	d.values = d.values[n:]
	for i := range values {
		values[i] = d.string()
	}
	return values
}

func (d *headDecoder) header() http.Header {
	names := d.int(len(d.s))
	if d.bad || names > len(d.s)/2 { // a name and a count take two bytes
		d.bad = true
		return nil
	}
	if names == 0 {
		return nil
	}
	h := make(http.Header, min(names, 64))
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
		h[name] = d.strings(n)
	}
	return h
}
