package har

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel/probe/internal/wire"
)

// Document is a HAR file. Field names are those of HAR 1.2; what HAR does not
// have is in _semel.
type Document struct {
	Log Log `json:"log"`
}

type (
	// Log is HAR's log.
	Log struct {
		Version string  `json:"version"`
		Creator Creator `json:"creator"`
		Entries []Entry `json:"entries"`
	}
	// Creator is the program that wrote a Document.
	Creator struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	// Entry is one exchange.
	Entry struct {
		Started    string   `json:"startedDateTime"`
		Time       float64  `json:"time"` // ms, as all times here
		Request    Request  `json:"request"`
		Response   Response `json:"response"`
		Cache      struct{} `json:"cache"`
		Timings    Timings  `json:"timings"`
		ServerIP   string   `json:"serverIPAddress,omitempty"`
		Connection string   `json:"connection,omitempty"` // the port on this side
		Semel      Semel    `json:"_semel"`
	}
	// Request is HAR's request.
	Request struct {
		Method      string    `json:"method"`
		URL         string    `json:"url"`
		HTTPVersion string    `json:"httpVersion"`
		Cookies     []Pair    `json:"cookies"`
		Headers     []Pair    `json:"headers"`
		Query       []Pair    `json:"queryString"`
		PostData    *PostData `json:"postData,omitempty"`
		HeadersSize int       `json:"headersSize"`
		BodySize    int       `json:"bodySize"`
	}
	// Pair is a name and a value.
	Pair struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	// PostData is the body of a request. Encoding is base64 if it is no text.
	PostData struct {
		MIME     string `json:"mimeType"`
		Params   []Pair `json:"params"`
		Text     string `json:"text"`
		Encoding string `json:"_encoding,omitempty"`
	}
	// Response is HAR's response; its status is 0 if there is none.
	Response struct {
		Status      int     `json:"status"`
		StatusText  string  `json:"statusText"`
		HTTPVersion string  `json:"httpVersion"`
		Cookies     []Pair  `json:"cookies"`
		Headers     []Pair  `json:"headers"`
		Content     Content `json:"content"`
		RedirectURL string  `json:"redirectURL"`
		HeadersSize int     `json:"headersSize"`
		BodySize    int     `json:"bodySize"`
	}
	// Content is the body of a response. Encoding is base64 if it is no text.
	Content struct {
		Size     int    `json:"size"`
		MIME     string `json:"mimeType"`
		Text     string `json:"text,omitempty"`
		Encoding string `json:"encoding,omitempty"`
	}
	// Timings are the parts of an entry's time in ms; -1 for what was not.
	Timings struct {
		Blocked float64 `json:"blocked"` // from the connection's standing to the first byte
		DNS     float64 `json:"dns"`
		Connect float64 `json:"connect"` // ssl is in it
		Send    float64 `json:"send"`
		Wait    float64 `json:"wait"`
		Receive float64 `json:"receive"`
		SSL     float64 `json:"ssl"`
	}
	// Semel is what HAR has no field for.
	Semel struct {
		Delivery  string `json:"delivery"`
		Acked     bool   `json:"acked"`
		Cut       bool   `json:"cut"`
		Truncated bool   `json:"truncated"`
		Interim   []int  `json:"interim,omitempty"`
		Error     string `json:"error,omitempty"`
		// Sent and Received are the bytes on the wire, as in wire.Exchange.
		Sent     []byte `json:"sent"`     // base64
		Received []byte `json:"received"` // base64
		// Exact: Sent and Received are what they were, to the byte. Otherwise
		// secrets have been taken out of them, and lengths in them are wrong.
		Exact bool `json:"exact"`
	}
)

// New makes a Document of exchanges, in their order. Without a Redactor
// everything is in it as it was, secrets included; a Redactor learns from all
// exchanges first.
func New(creator Creator, r *Redactor, xs ...wire.Exchange) Document {
	if r != open {
		r.Learn(xs...)
	}
	d := Document{Log{Version: "1.2", Creator: creator, Entries: []Entry{}}}
	for _, x := range xs {
		d.Log.Entries = append(d.Log.Entries, r.entry(x))
	}
	return d
}

// Write writes the Document as JSON.
func (d Document) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}

func (r *Redactor) entry(x wire.Exchange) Entry {
	e := Entry{
		Started:  x.Timing.Start.Format(time.RFC3339Nano),
		Request:  r.request(x),
		Response: r.response(x),
		Timings:  timings(x.Timing),
		Semel:    Semel{Delivery: x.Delivery.String(), Acked: x.Acked, Cut: x.Cut},
	}
	t := e.Timings
	for _, part := range []float64{t.Blocked, t.DNS, t.Connect, t.Send, t.Wait, t.Receive} {
		e.Time += max(part, 0)
	}
	if x.Remote.IsValid() {
		e.ServerIP = x.Remote.Addr().String()
	}
	if x.Local.IsValid() {
		e.Connection = strconv.Itoa(int(x.Local.Port()))
	}
	if x.Response != nil {
		e.Semel.Truncated, e.Semel.Interim = x.Response.Truncated, x.Response.Interim
	}
	if x.Err != nil {
		e.Semel.Error = r.string(x.Err.Error())
	}
	e.Semel.Sent, e.Semel.Received = x.Sent, x.Received
	if r != open {
		e.Semel.Sent, e.Semel.Received = r.raw(x)
	}
	e.Semel.Exact = bytes.Equal(e.Semel.Sent, x.Sent) && bytes.Equal(e.Semel.Received, x.Received)
	return e
}

// open is no Redactor: it leaves everything as it is.
var open *Redactor

func (r *Redactor) string(s string) string {
	if r == open {
		return s
	}
	return r.URL(s)
}

func (r *Redactor) list(fs []wire.Field) []Pair {
	ps := []Pair{}
	for _, f := range fs {
		p := Pair{f.Name, f.Value}
		if r != open {
			p = Pair{r.FieldName(f.Name), r.Field(f.Name, f.Value)}
		}
		ps = append(ps, p)
	}
	return ps
}

func (r *Redactor) text(b []byte, coding string) (text, encoding string) {
	if r != open {
		b = r.body(b, coding)
	}
	if utf8.Valid(b) {
		return string(b), ""
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}

func get(fs []wire.Field, name string) string {
	for _, f := range fs {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

func version(p wire.Protocol) string {
	if p == wire.HTTP2 {
		return "HTTP/2.0"
	}
	return "HTTP/1.1"
}

func (r *Redactor) request(x wire.Exchange) Request {
	q := Request{
		Method: r.string(x.Request.Method), URL: r.string(x.Request.URL), HTTPVersion: version(x.Protocol),
		Headers: r.list(x.Request.Header), Cookies: []Pair{}, Query: []Pair{},
		HeadersSize: -1, BodySize: len(x.Request.Body),
	}
	if head := bytes.Index(x.Sent, headEnd); x.Protocol == wire.HTTP1 && head >= 0 {
		q.HeadersSize = head + len(headEnd)
	}
	for _, p := range q.Headers {
		if strings.EqualFold(p.Name, "Cookie") {
			for c := range strings.SplitSeq(p.Value, ";") {
				k, v, _ := strings.Cut(strings.TrimSpace(c), "=")
				q.Cookies = append(q.Cookies, Pair{k, v})
			}
		}
	}
	_, query, _ := strings.Cut(q.URL, "?")
	query, _, _ = strings.Cut(query, "#")
	for part := range strings.SplitSeq(query, "&") {
		if part != "" {
			k, v, _ := strings.Cut(part, "=")
			q.Query = append(q.Query, Pair{unescape(k), unescape(v)})
		}
	}
	if len(x.Request.Body) > 0 {
		q.PostData = &PostData{MIME: r.string(get(x.Request.Header, "Content-Type")), Params: []Pair{}}
		q.PostData.Text, q.PostData.Encoding = r.text(x.Request.Body, get(x.Request.Header, "Content-Encoding"))
	}
	return q
}

func (r *Redactor) response(x wire.Exchange) Response {
	if x.Response == nil {
		return Response{Cookies: []Pair{}, Headers: []Pair{}, HeadersSize: -1, BodySize: -1}
	}
	h := x.Response.Header
	p := Response{
		Status: x.Response.Status, StatusText: r.string(x.Response.Reason), HTTPVersion: r.string(x.Response.Proto),
		Headers: r.list(fieldsOf(h)), Cookies: []Pair{}, RedirectURL: r.string(h.Get("Location")),
		HeadersSize: -1, BodySize: len(x.Response.Body),
		Content: Content{Size: len(x.Response.Body), MIME: r.string(h.Get("Content-Type"))},
	}
	for _, f := range p.Headers {
		if http.CanonicalHeaderKey(f.Name) == "Set-Cookie" {
			pair, _, _ := strings.Cut(f.Value, ";")
			k, v, _ := strings.Cut(pair, "=")
			p.Cookies = append(p.Cookies, Pair{strings.TrimSpace(k), v})
		}
	}
	p.Content.Text, p.Content.Encoding = r.text(x.Response.Body, h.Get("Content-Encoding"))
	return p
}

func timings(t wire.Timing) Timings {
	ms := func(from, to time.Time, none float64) float64 {
		if from.IsZero() || to.IsZero() {
			return none
		}
		return max(float64(to.Sub(from))/float64(time.Millisecond), 0)
	}
	ready := t.Connected
	if !t.Secured.IsZero() {
		ready = t.Secured
	}
	sent := t.LastWrite
	if sent.IsZero() {
		sent = t.Done
	}
	answered := t.FirstByte
	if answered.IsZero() {
		answered = t.Done
	}
	return Timings{
		Blocked: ms(ready, t.FirstWrite, -1),
		DNS:     ms(t.Start, t.Resolved, -1),
		Connect: ms(t.Resolved, ready, -1),
		SSL:     ms(t.Connected, t.Secured, -1),
		Send:    ms(t.FirstWrite, sent, 0),
		Wait:    ms(t.LastWrite, answered, 0),
		Receive: ms(t.FirstByte, t.Done, 0),
	}
}
