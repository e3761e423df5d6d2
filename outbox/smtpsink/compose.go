package smtpsink

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/outbox"
)

// letter is a mail as it goes on the wire.
type letter struct {
	from string
	to   []string
	data []byte
}

// free are headers that a message may set besides those that compose knows, and
// whatever begins with X-.
var free = map[string]bool{
	"Reply-To": true, "In-Reply-To": true, "References": true, "List-Id": true, "List-Unsubscribe": true,
	"List-Unsubscribe-Post": true, "Auto-Submitted": true, "Precedence": true,
}

// compose makes the mail. It is the same for every attempt, so that two copies of
// it can be known by more than their Message-ID. The errors are the message's
// fault.
func (s *Sink) compose(d outbox.Delivery) (l letter, err error) {
	h := map[string]string{}
	for name, value := range d.Headers {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if strings.ContainsFunc(name, notHeader) || strings.ContainsFunc(value, isControl) {
			return l, errors.New("a header's name is not valid, or its value holds control characters")
		}
		if _, ok := h[canonical]; ok {
			return l, fmt.Errorf("the header %s is there twice", canonical)
		}
		h[canonical] = value
	}
	take := func(name string) string {
		v := h[name]
		delete(h, name)
		return v
	}

	var b bytes.Buffer
	from := s.from
	if v := take("From"); v != "" {
		if from, err = mail.ParseAddress(v); err != nil {
			return l, errors.New("the header From holds no address")
		}
	}
	if from == nil {
		return l, errors.New("there is no From, neither in the message nor in the sink's configuration")
	}
	l.from = from.Address
	header(&b, "From", from.String())
	for _, name := range []string{"To", "Cc", "Bcc"} {
		v := take(name)
		if v == "" {
			continue
		}
		list, err := mail.ParseAddressList(v)
		if err != nil {
			return l, fmt.Errorf("the header %s is not a list of addresses", name)
		}
		var texts []string
		for _, a := range list {
			if !slices.Contains(l.to, a.Address) {
				l.to = append(l.to, a.Address)
			}
			texts = append(texts, a.String())
		}
		if name != "Bcc" {
			header(&b, name, strings.Join(texts, ", "))
		}
	}
	if len(l.to) == 0 || len(l.to) > s.config.MaxRecipients {
		return l, fmt.Errorf("it has %d recipients; one to %d are allowed", len(l.to), s.config.MaxRecipients)
	}
	for _, a := range append([]string{l.from}, l.to...) {
		if strings.ContainsFunc(a, isControl) || len(a) > 320 {
			return l, errors.New("an address holds control characters, or is too long")
		}
	}
	domain := s.config.Domain
	if domain == "" {
		domain = l.from[strings.LastIndexByte(l.from, '@')+1:]
	}
	header(&b, "Message-ID", messageID(d.ID, domain))
	header(&b, "Date", d.EnqueuedAt.UTC().Format(time.RFC1123Z))
	header(&b, "Subject", encode(take("Subject")))
	kind := take("Content-Type")
	if kind == "" {
		kind = "text/plain; charset=utf-8"
	}
	media, _, err := mime.ParseMediaType(kind)
	if err != nil || !strings.Contains(media, "/") {
		return l, errors.New("the header Content-Type is not valid")
	}
	for _, name := range sorted(h) {
		if !free[name] && !strings.HasPrefix(name, "X-") {
			return l, fmt.Errorf("a message cannot set the header %s", name)
		}
		header(&b, name, encode(h[name]))
	}
	header(&b, "MIME-Version", "1.0")
	header(&b, "Content-Type", kind)
	if err := body(&b, media, d.Payload); err != nil {
		return l, err
	}
	l.data = b.Bytes()
	return l, nil
}

func sorted(h map[string]string) (names []string) {
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func notHeader(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-')
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// messageID is the same for every attempt at a message.
func messageID(id, domain string) string {
	return "<" + strings.NewReplacer(".", "=2E", ":", "=3A").Replace(id) + "@" + domain + ">"
}

func encode(s string) string { return mime.QEncoding.Encode("utf-8", s) }

// header writes a header, folded at its spaces.
func header(b *bytes.Buffer, name, value string) {
	b.WriteString(name + ":")
	width := len(name) + 1
	for word := range strings.SplitSeq(value, " ") {
		if width+1+len(word) > 76 && width > len(name)+1 && word != "" {
			b.WriteString("\r\n")
			width = 0
		}
		b.WriteString(" " + word)
		width += 1 + len(word)
	}
	b.WriteString("\r\n")
}

// body writes the payload in an encoding that every server passes on as it is. A
// multipart payload is encoded in itself already.
func body(b *bytes.Buffer, media string, payload []byte) error {
	plain := isPlain(payload)
	encoding := "base64"
	switch {
	case plain:
		encoding = "7bit"
	case strings.HasPrefix(media, "multipart/"), strings.HasPrefix(media, "message/"):
		return fmt.Errorf("the payload is %s and not of short lines of ASCII, so it cannot be sent as it is", media)
	case strings.HasPrefix(media, "text/"):
		encoding = "quoted-printable"
	}
	header(b, "Content-Transfer-Encoding", encoding)
	b.WriteString("\r\n")
	switch encoding {
	case "7bit":
		b.Write(payload)
	case "quoted-printable":
		w := quotedprintable.NewWriter(b)
		if _, err := w.Write(payload); err != nil {
			return err
		}
		return w.Close()
	default:
		text := base64.StdEncoding.EncodeToString(payload)
		for len(text) > 76 {
			b.WriteString(text[:76] + "\r\n")
			text = text[76:]
		}
		b.WriteString(text)
	}
	return nil
}

// isPlain reports whether a payload is ASCII in lines that need no encoding.
func isPlain(payload []byte) bool {
	length := 0
	for i, c := range payload {
		switch {
		case c == '\n':
			length = -1
		case c == '\r' && (i+1 == len(payload) || payload[i+1] != '\n'), c == 0, c >= 0x7f, c < ' ' && c != '\t' && c != '\r':
			return false
		}
		if length++; length > 900 {
			return false
		}
	}
	return true
}
