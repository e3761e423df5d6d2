package semelhttp

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"time"

	"github.com/semelhq/semel"
)

// replay answers from records.
type replay struct {
	contract  *Contract
	resources *Resources    // where the operation is shown; may be nil
	shared    bool          // callers are not told apart
	head      bool          // the request was a HEAD
	timeout   time.Duration // of reading one piece
	pace      Pace
}

// write answers from a record. Like send, it panics with http.ErrAbortHandler
// where the response cannot be brought to its end.
func (r replay) write(ctx context.Context, w http.ResponseWriter, out semel.Outcome, err error) {
	var room [16]headerField
	h, set, add, bad := decodeHead(out.Result.Head, room[:0])
	if out.Result.Tombstone || out.Result.Codec != CodecHTTP || err != nil || bad != nil {
		// It completed, but there is nothing here that could be replayed.
		r.notRetained(w, out.Record.ID, out.Result.Reference, out.Record.ExpiresAt)
		return
	}
	body := content{bytes: out.Result.Body, head: r.head}
	if p := out.Result.Pieces; p != nil {
		body.size = p.Size
		// The first before the header, as long as there is another response.
		read := func(n int) ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			return p.ReadPiece(ctx, n)
		}
		first, err := read(0)
		if errors.Is(err, semel.ErrNotFound) {
			r.notRetained(w, out.Record.ID, out.Result.Reference, time.Time{})
			return
		}
		if err != nil {
			problem := ProblemStoreUnavailable.Problem()
			problem.Detail = "The operation completed, but its recorded response could not be read now. Nothing was executed again."
			problem.RetryAfter = time.Second
			if errors.Is(err, semel.ErrUnreadable) {
				problem = ProblemResultUnreadable.Problem()
				problem.RetryAfter = unreadableFor
			}
			problem.StatusURL = r.resources.StatusURL(out.Record.ID)
			r.contract.WriteProblem(w, problem)
			return
		}
		body.rest = func(w io.Writer) error { return writePieces(w, p.Count(), first, read) }
	}
	if out.Answer == semel.AnswerReplayed && r.shared { // it could be another's
		const cookie = "Set-Cookie"
		set, add = set.without(cookie), add.without(cookie)
		maps.DeleteFunc(h.trailer, func(name string, _ []string) bool { return textproto.CanonicalMIMEHeaderKey(name) == cookie })
	}
	body.coded = w.Header().Get("Content-Encoding") != ""
	set.set(w.Header())
	add.add(w.Header())
	own := h.spare
	if out.Answer == semel.AnswerReplayed && r.contract.ReplayedHeader != "" {
		w.Header()[r.contract.ReplayedHeader] = own.one("true")
	}
	send(w, r.contract, r.pace, h.status, h.trailer, body, out.Record.ExpiresAt, own)
}

// writePieces writes a body piece by piece, the first of which has been read.
func writePieces(w io.Writer, count int, piece []byte, read func(n int) ([]byte, error)) error {
	for n := 0; ; {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if n++; n == count {
			return nil
		}
		var err error
		if piece, err = read(n); err != nil {
			return err
		}
	}
}

func (r replay) notRetained(w http.ResponseWriter, recordID, reference string, expires time.Time) {
	r.contract.setExpires(w.Header(), expires, nil)
	p := ProblemResultNotRetained.Problem()
	p.Reference, p.StatusURL = reference, r.resources.StatusURL(recordID)
	r.contract.WriteProblem(w, p)
}

// content is the body of a response.
type content struct {
	bytes []byte
	// rest writes a body that is not in memory, of the given size.
	rest func(w io.Writer) error
	size int64
	head bool // it is not to be sent
	// coded: who stands around the protection has announced a content coding
	// before the handler did, and so makes another body of this one.
	coded bool
}

// content returns the whole.
func (s *spool) content() content {
	if s.file == nil {
		return content{bytes: s.mem}
	}
	return content{size: s.size(), rest: func(w io.Writer) error {
		_, err := io.Copy(w, s.reader())
		return err
	}}
}

// write writes it.
func (c *content) write(w io.Writer) (err error) {
	switch {
	case c.head:
	case c.rest != nil:
		err = c.rest(w)
	case len(c.bytes) > 0:
		_, err = w.Write(c.bytes)
	}
	return err
}

// send writes a whole response whose header is in place. If the body cannot be
// written to its end, it panics with http.ErrAbortHandler, so that the client
// sees that there is more. own is room for values of what it adds to the header.
func send(w http.ResponseWriter, c *Contract, pace Pace, status int, trailer http.Header, body content, expires time.Time, own values) {
	h := w.Header()
	own = c.setExpires(h, expires, own)
	if c.ResultHeader != "" {
		result := "accepted"
		if expires.IsZero() { // released: there was no effect
			result = "rejected"
		}
		h[c.ResultHeader] = own.one(result)
	}
	switch {
	case !bodyAllowed(status):
		body = content{}
	case len(trailer) > 0:
		h.Del("Content-Length") // over HTTP/1.1, trailers need the chunked coding
		// In h is what others have announced.
		h["Trailer"] = append(slices.Clone(h["Trailer"]), sortedNames(trailer)...)
	case len(h["Trailer"]) > 0:
		h.Del("Content-Length")
	default:
		if _, ok := h["Content-Length"]; !ok && !body.coded {
			h["Content-Length"] = own.one(strconv.FormatInt(max(body.size, int64(len(body.bytes))), 10))
		}
	}
	w.WriteHeader(status)
	if body.rest == nil && len(body.bytes) <= sendsAtOnce {
		_ = body.write(w) // waits for nobody
	} else if body.write(newPacedWriter(w, pace)) != nil {
		abort(w)
	}
	for _, name := range sortedNames(trailer) {
		delete(h, textproto.CanonicalMIMEHeaderKey(name)) // as which it has been announced
	}
	for _, name := range sortedNames(trailer) {
		announced := textproto.CanonicalMIMEHeaderKey(name)
		h[announced] = append(h[announced], trailer[name]...)
	}
}

// abort cuts a response off that cannot be brought to its end.
func abort(w http.ResponseWriter) {
	cutOff(w)
	panic(http.ErrAbortHandler)
}

// cutOff makes sure that a response that has begun does not end as if it was whole.
// The panic that leaves it behind does that too, but a middleware that recovers
// may be on its way.
func cutOff(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(past)
}

// sendsAtOnce is as much as a server of net/http takes without waiting for the
// client.
const sendsAtOnce = 2 << 10

// setExpires returns what is left of own, the room for values.
func (c *Contract) setExpires(h http.Header, expires time.Time, own values) values {
	if !expires.IsZero() && c.ExpiresHeader != "" {
		var text [len(http.TimeFormat)]byte
		h[c.ExpiresHeader] = own.one(string(appendHTTPDate(text[:0], expires)))
	}
	return own
}

// appendHTTPDate appends what t.UTC().Format(http.TimeFormat) is for the years that
// have four digits, in a fifth of the time.
func appendHTTPDate(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	if year < 0 || year > 9999 {
		return t.AppendFormat(b, http.TimeFormat)
	}
	two := func(n int) { b = append(b, byte('0'+n/10), byte('0'+n%10)) }
	b = append(b, t.Weekday().String()[:3]...)
	b = append(b, ", "...)
	two(day)
	b = append(b, ' ')
	b = append(b, month.String()[:3]...)
	b = append(b, ' ')
	two(year / 100)
	two(year % 100)
	b = append(b, ' ')
	two(hour)
	b = append(b, ':')
	two(minute)
	b = append(b, ':')
	two(second)
	return append(b, " GMT"...)
}
