package har

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/semelhq/semel/probe/wire"
)

// DefaultMaxFile bounds what Requests reads, in bytes.
const DefaultMaxFile = 256 << 20

// Imported is one entry of a HAR file.
type Imported struct {
	Request wire.Request
	// Response is what was answered, as far as the file has it.
	Response Answer
	// Err is why the entry is no request that can be sent: a body that is not
	// in the file, a WebSocket, a data: URL. Its text quotes no values.
	Err error
}

// Answer is what a file has of an answer.
type Answer struct {
	Status   int
	Location string
	Body     []byte // as text: without its Content-Encoding
}

func readAnswer(raw json.RawMessage) (a Answer) {
	var e struct {
		Response struct {
			Status  int     `json:"status"`
			Headers []Pair  `json:"headers"`
			Content Content `json:"content"`
		} `json:"response"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return a
	}
	a.Status, a.Body = e.Response.Status, []byte(e.Response.Content.Text)
	for _, h := range e.Response.Headers {
		if strings.EqualFold(h.Name, "Location") {
			a.Location = h.Value
		}
	}
	if e.Response.Content.Encoding == "base64" {
		a.Body, _ = base64.StdEncoding.DecodeString(e.Response.Content.Text)
	}
	return a
}

// Requests takes the requests out of a HAR file, in its order. It reads what
// browsers and proxies write, which is not always HAR: only what a request is
// made of is looked at. Fields that belong to a connection or to framing are
// left out, as are those that HTTP/2 starts with a colon; the Protocol is Auto.
//
// An error means that the file is no HAR at all, or is larger than limit bytes;
// a limit of 0 is DefaultMaxFile. What is wrong with one entry is in its Err.
func Requests(r io.Reader, limit int64) ([]Imported, error) {
	if limit <= 0 {
		limit = DefaultMaxFile
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("har: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("har: the file is larger than %d bytes", limit)
	}
	var file struct {
		Log *struct {
			Entries []json.RawMessage `json:"entries"`
		} `json:"log"`
	}
	if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), &file); err != nil {
		return nil, fmt.Errorf("har: this is no HAR file: %w", jsonError(err))
	}
	if file.Log == nil {
		return nil, errors.New("har: this is no HAR file: it has no log")
	}
	all := make([]Imported, len(file.Log.Entries))
	for i, e := range file.Log.Entries {
		all[i].Request, all[i].Err = readEntry(e)
		all[i].Response = readAnswer(e)
	}
	return all, nil
}

// jsonError drops what an error of encoding/json quotes.
func jsonError(err error) error {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the JSON is broken at byte %d", s.Offset)
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s has another type", t.Field)
	}
	return errors.New("the JSON is broken")
}

// left are the fields that describe a connection or the framing of the
// recorded send.
var left = map[string]bool{
	"connection": true, "content-length": true, "http2-settings": true, "keep-alive": true,
	"proxy-connection": true, "te": true, "transfer-encoding": true, "upgrade": true,
}

func readEntry(raw json.RawMessage) (wire.Request, error) {
	var e struct {
		Request *struct {
			Method   string `json:"method"`
			URL      string `json:"url"`
			Headers  []Pair `json:"headers"`
			PostData *struct {
				MIME   string `json:"mimeType"`
				Text   string `json:"text"`
				Params []struct {
					Pair
					File string `json:"fileName"`
				} `json:"params"`
				Encoding string `json:"encoding"`
				Ours     string `json:"_encoding"`
			} `json:"postData"`
		} `json:"request"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return wire.Request{}, fmt.Errorf("har: %w", jsonError(err))
	}
	if e.Request == nil {
		return wire.Request{}, errors.New("har: the entry has no request")
	}
	q := wire.Request{Method: e.Request.Method, URL: e.Request.URL}
	typed := false
	for _, h := range e.Request.Headers {
		name := strings.ToLower(h.Name)
		if left[name] || strings.HasPrefix(name, ":") {
			continue
		}
		typed = typed || name == "content-type"
		q.Header = append(q.Header, wire.Field{Name: h.Name, Value: h.Value})
	}
	if p := e.Request.PostData; p != nil {
		mime, _, _ := strings.Cut(strings.ToLower(p.MIME), ";")
		switch {
		case p.Text != "" && (p.Encoding == "base64" || p.Ours == "base64"):
			b, err := base64.StdEncoding.DecodeString(p.Text)
			if err != nil {
				return q, errors.New("har: the body is no base64")
			}
			q.Body = b
		case p.Text != "":
			q.Body = []byte(p.Text)
		case len(p.Params) > 0 && strings.TrimSpace(mime) == "application/x-www-form-urlencoded":
			var parts []string
			for _, v := range p.Params {
				parts = append(parts, url.QueryEscape(unescape(v.Name))+"="+url.QueryEscape(unescape(v.Value)))
			}
			q.Body = []byte(strings.Join(parts, "&"))
		case len(p.Params) > 0:
			return q, errors.New("har: the body is not in the file, only its parts are")
		}
		if !typed && p.MIME != "" && len(q.Body) > 0 {
			q.Header = append(q.Header, wire.Field{Name: "Content-Type", Value: p.MIME})
		}
	}
	if err := q.Validate(); err != nil {
		return q, fmt.Errorf("har: %w", err)
	}
	return q, nil
}
