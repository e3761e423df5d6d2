package smtpsink

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Whatever a message holds, no mail is made of it, or one with the headers that are
// allowed, once each, to the recipients that its own headers name, and with its
// payload as the body.
func FuzzCompose(f *testing.F) {
	f.Add("a@example.com", "Hello", "X-Tag", "value", "", "id", []byte("text\n"))
	f.Add("a@example.com, B <b@example.com>", "Grüße\U0001f4a9", "Reply-To", "x@example.com", "text/html; charset=utf-8", "id", []byte("ü"))
	f.Add("a@example.com", "x\r\nBcc: b@example.com", "X-A: b\r\nBcc", "c@example.com", "text/plain\r\nX: y", "id", []byte(".\r\n"))
	f.Add(`"a\r\nRCPT TO:<b@example.com>"@example.com`, strings.Repeat("word ", 100), "X-Long", strings.Repeat("ä", 200), "application/pdf", "a:b", []byte("\x00\xff"))
	f.Add("=?utf-8?q?a=0D=0A?= <a@example.com>", "=?utf-8?q?=0D=0ABcc:_b@example.com?=", "X-Q", "=?utf-8?q?=0A?=", "multipart/mixed; boundary=x", "id", []byte("--x--"))
	sink, err := New(Config{Addr: "mail.example.com:25", From: "shop@example.com"})
	if err != nil {
		f.Fatal(err)
	}
	allowed := []string{"From", "To", "Message-Id", "Date", "Subject", "Mime-Version", "Content-Type", "Content-Transfer-Encoding"}
	f.Fuzz(func(t *testing.T, to, subject, name, value, kind, id string, payload []byte) {
		m := outbox.Message{ID: id, Topic: "t", Payload: payload, Headers: map[string]string{"To": to, "Subject": subject, name: value}}
		if kind != "" {
			m.Headers["Content-Type"] = kind
		}
		if id == "" || m.Validate() != nil {
			return // the relay does not get that far
		}
		l, err := sink.compose(outbox.Delivery{Message: m, EnqueuedAt: time.Unix(1, 0)})
		if err != nil {
			return
		}
		head, body, ok := bytes.Cut(l.data, []byte("\r\n\r\n"))
		if !ok {
			t.Fatalf("no end of the headers: %q", l.data)
		}
		for line := range bytes.SplitSeq(head, []byte("\r\n")) {
			if bytes.ContainsAny(line, "\r\n\x00") || len(line) > 998 || len(line) == 0 {
				t.Errorf("a line of the headers is %q", line)
			}
		}
		parsed, err := mail.ReadMessage(bytes.NewReader(l.data))
		if err != nil {
			t.Fatalf("%v: %q", err, l.data)
		}
		own := textproto.CanonicalMIMEHeaderKey(name)
		for h, values := range parsed.Header {
			if len(values) != 1 || !slices.Contains(allowed, h) && h != own {
				t.Errorf("the header %s is there: %q", h, values)
			}
		}
		// Who gets it is who its headers name.
		var want []string
		for _, h := range []string{"To", "Cc", "Bcc"} {
			list := m.Headers[h]
			if own == h && name != h {
				list = value
			}
			if list == "" {
				continue
			}
			addresses, err := mail.ParseAddressList(list)
			if err != nil {
				t.Fatalf("%s: %v", h, err)
			}
			for _, a := range addresses {
				want = append(want, a.Address)
			}
		}
		for _, a := range l.to {
			if !slices.Contains(want, a) || strings.ContainsAny(a, "\r\n\x00") {
				t.Errorf("it goes to %q; the message names %q", a, want)
			}
		}
		decoded := body
		switch parsed.Header.Get("Content-Transfer-Encoding") {
		case "quoted-printable":
			decoded, err = io.ReadAll(quotedprintable.NewReader(bytes.NewReader(body)))
		case "base64":
			decoded, err = base64.StdEncoding.DecodeString(string(body))
		}
		if lines := strings.NewReplacer("\r\n", "\n"); err != nil || lines.Replace(string(decoded)) != lines.Replace(string(payload)) {
			t.Errorf("the payload %q came as %q, %v", payload, decoded, err)
		}
		if got, err := new(mime.WordDecoder).DecodeHeader(parsed.Header.Get("Subject")); own != "Subject" && strings.TrimSpace(got) != strings.TrimSpace(subject) &&
			!strings.Contains(subject, "=?") && !strings.Contains(subject, "  ") {
			t.Errorf("the subject %q came as %q, %v", subject, got, err)
		}
	})
}
