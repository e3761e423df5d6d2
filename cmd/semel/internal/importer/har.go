package importer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// harEntry is one entry of a HAR file.
type harEntry struct {
	Request sentRequest
	// Response is what was answered, as far as the file has it.
	Response harAnswer
	// Err is why the entry is no request that can be sent: a body that is not
	// in the file, a WebSocket, a data: URL. Its text quotes no values.
	Err error
}

// harAnswer is what a file has of a response.
type harAnswer struct {
	Status   int
	Location string
	Body     []byte // as text: without its Content-Encoding
}

func readAnswer(raw json.RawMessage) (a harAnswer) {
	var e struct {
		Response struct {
			Status  int     `json:"status"`
			Headers []field `json:"headers"`
			Content struct {
				Text     string `json:"text"`
				Encoding string `json:"encoding"`
			} `json:"content"`
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

// harEntries takes the requests out of a HAR file, in its order. It reads what
// browsers and proxies write, which is not always HAR: only what a request is
// made of is looked at. Fields that belong to a connection or to framing are
// left out, as are those that HTTP/2 starts with a colon.
//
// An error means that the file is no HAR at all, or is larger than limit
// bytes. What is wrong with one entry is in its Err.
func harEntries(b []byte, limit int) ([]harEntry, error) {
	if len(b) > limit {
		return nil, fmt.Errorf("the file is larger than %d bytes", limit)
	}
	var file struct {
		Log *struct {
			Entries []json.RawMessage `json:"entries"`
		} `json:"log"`
	}
	if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), &file); err != nil {
		return nil, fmt.Errorf("this is not a HAR file: %w", jsonError(err))
	}
	if file.Log == nil {
		return nil, errors.New("this is not a HAR file: it has no log")
	}
	all := make([]harEntry, len(file.Log.Entries))
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

// ofConnection are the fields about a connection or the framing of the
// recorded send.
var ofConnection = map[string]bool{
	"connection": true, "content-length": true, "http2-settings": true, "keep-alive": true,
	"proxy-connection": true, "te": true, "transfer-encoding": true, "upgrade": true,
}

func readEntry(raw json.RawMessage) (sentRequest, error) {
	var e struct {
		Request *struct {
			Method   string  `json:"method"`
			URL      string  `json:"url"`
			Headers  []field `json:"headers"`
			PostData *struct {
				MIME   string `json:"mimeType"`
				Text   string `json:"text"`
				Params []struct {
					field
					File string `json:"fileName"`
				} `json:"params"`
				Encoding string `json:"encoding"`
				Ours     string `json:"_encoding"`
			} `json:"postData"`
		} `json:"request"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return sentRequest{}, fmt.Errorf("%w", jsonError(err))
	}
	if e.Request == nil {
		return sentRequest{}, errors.New("the entry has no request")
	}
	q := sentRequest{Method: e.Request.Method, URL: e.Request.URL}
	typed := false
	for _, h := range e.Request.Headers {
		name := strings.ToLower(h.Name)
		if ofConnection[name] || strings.HasPrefix(name, ":") {
			continue
		}
		typed = typed || name == "content-type"
		q.Header = append(q.Header, field{Name: h.Name, Value: h.Value})
	}
	if p := e.Request.PostData; p != nil {
		mime, _, _ := strings.Cut(strings.ToLower(p.MIME), ";")
		switch {
		case p.Text != "" && (p.Encoding == "base64" || p.Ours == "base64"):
			b, err := base64.StdEncoding.DecodeString(p.Text)
			if err != nil {
				return q, errors.New("the body is not base64")
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
			return q, errors.New("the body is not in the file, only its parts are")
		}
		if !typed && p.MIME != "" && len(q.Body) > 0 {
			q.Header = append(q.Header, field{Name: "Content-Type", Value: p.MIME})
		}
	}
	return q, q.validate()
}

// validate says why a request cannot be sent, without quoting it.
func (q *sentRequest) validate() error {
	u, err := url.Parse(q.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("the URL is not an http or https URL")
	}
	if !token.MatchString(q.Method) {
		return errors.New("the method is not valid")
	}
	for _, f := range q.Header {
		if !token.MatchString(f.Name) || strings.ContainsAny(f.Value, "\r\n\x00") {
			return errors.New("a header line is not valid")
		}
	}
	return nil
}

func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	return s
}
