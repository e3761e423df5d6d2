package httpsink

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel/outbox"
)

// Whatever a message holds, no request is made of it, or one with its payload, its
// own headers and the sink's, each once, from which what they stand for can be read.
func FuzzRequest(f *testing.F) {
	f.Add("id", "topic", "lane", "type", "X-A", "b", []byte("payload"))
	f.Add("a.b:c-d_e", "t/\u202e ?#%", "\U0001f4a9\u00fc", "order.paid", "Content-Type", "application/json", []byte("{}"))
	f.Add("id", "t\r\nX-B: c", "k\r\n\r\nGET / HTTP/1.1", "\t", "X-A: b\r\nX-C", "d\r\nX-E: f", []byte("\r\n0\r\n\r\n"))
	f.Add("id", "t", "", "", "Transfer-Encoding", "chunked", []byte{})
	f.Add("id", "t", "", "", "idempotency-key", `"mine"`, []byte{})
	f.Add("id", "t", "", "", "X-\u017f", "\x80", []byte{})
	s, err := New(Config{URL: "https://hooks.example.com/in?a=b", Header: http.Header{"authorization": {"Bearer x"}}})
	if err != nil {
		f.Fatal(err)
	}
	ours := []string{
		HeaderKey, HeaderTopic, HeaderLane, HeaderType, HeaderAttempt, "Authorization", "Content-Type", "User-Agent", "Content-Length",
	}
	f.Fuzz(func(t *testing.T, id, topic, key, kind, name, value string, payload []byte) {
		m := outbox.Message{ID: id, Topic: topic, Key: key, Type: kind, Headers: map[string]string{name: value}, Payload: payload}
		if id == "" || m.Validate() != nil {
			return // the relay does not get that far
		}
		header, err := s.own(outbox.Delivery{Message: m, Attempt: 3})
		if err != nil {
			return
		}
		r, err := request(t.Context(), s.url, m, header)
		if err != nil {
			return
		}
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			t.Fatalf("it cannot be sent: %v", err)
		}
		rest := bufio.NewReader(&wire)
		got, err := http.ReadRequest(rest)
		if err != nil {
			t.Fatalf("it cannot be read: %v", err)
		}
		// Without a payload it comes in chunks, of which there are none: a body of
		// length 0 the transport would send again by itself.
		if got.Method != http.MethodPost || got.URL.String() != "/in?a=b" || got.Host != "hooks.example.com" || len(payload) > 0 && len(got.TransferEncoding) > 0 {
			t.Errorf("%s %s to %s, %q", got.Method, got.URL, got.Host, got.TransferEncoding)
		}
		own := textproto.CanonicalMIMEHeaderKey(name)
		for h, values := range got.Header {
			if len(values) != 1 || !slices.Contains(ours, h) && h != own {
				t.Errorf("the header %s is there: %q", h, values)
			}
		}
		for h, want := range map[string]string{HeaderTopic: topic, HeaderLane: key, HeaderType: kind} {
			if text, err := url.PathUnescape(got.Header.Get(h)); err != nil || text != want {
				t.Errorf("%s says %q, %v; want %q", h, text, err, want)
			}
		}
		if got.Header.Get(HeaderKey) != `"`+id+`"` || got.Header.Get("Authorization") != "Bearer x" {
			t.Errorf("the sink's own headers are %q", got.Header)
		}
		if own != "Authorization" && own != "User-Agent" && got.Header.Get(name) != strings.Trim(value, " \t") {
			t.Errorf("the header %s is %q; want %q", name, got.Header.Get(name), value)
		}
		body, err := io.ReadAll(got.Body)
		if err != nil || !bytes.Equal(body, payload) {
			t.Errorf("the payload %q came as %q, %v", payload, body, err)
		}
		if left, _ := io.ReadAll(rest); len(left) > 0 {
			t.Errorf("behind the request comes %q", left)
		}
	})
}
