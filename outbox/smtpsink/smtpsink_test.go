package smtpsink_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http/httptest"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/outbox/smtpsink"
	"github.com/semelhq/semel/store/memory"
)

// box is a mail server that keeps what it takes.
type box struct {
	outboxtest.MailServer
	addr string

	mu    sync.Mutex
	mails []outboxtest.Mail
}

func serve(t *testing.T, b *box) *box {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	b.addr = l.Addr().String()
	accept := b.Accept
	b.Accept = func(m outboxtest.Mail) error {
		b.mu.Lock()
		b.mails = append(b.mails, m)
		b.mu.Unlock()
		if accept != nil {
			return accept(m)
		}
		return nil
	}
	go b.Serve(l)
	return b
}

func (b *box) taken() []outboxtest.Mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mails
}

func sink(t *testing.T, c smtpsink.Config) *smtpsink.Sink {
	t.Helper()
	s, err := smtpsink.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fate runs one attempt through a relay and says where the message is then.
func fate(t *testing.T, s outbox.Sink, policy outbox.UnknownPolicy, m outbox.Message) outbox.Entry {
	t.Helper()
	o := memory.NewOutbox()
	m.ID, m.Topic = "id-1.2:3", "t"
	if m.Headers == nil {
		m.Headers = map[string]string{"To": "a@example.com"}
	}
	if err := o.Enqueue(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := func(context.Context, outbox.Attempted) { cancel() }
	r, err := outbox.New(outbox.Config{
		Store: o, Routes: []outbox.Route{{Sink: s, OnUnknown: policy, Timeout: 5 * time.Second}},
		Observer: &outbox.Observer{Delivered: done, Retried: done, Dead: done, Unknown: done},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	e, err := o.Find(t.Context(), m.ID)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Whatever goes wrong before the last line of the mail has no effect and is tried
// again, or is for good. Only what goes wrong behind it is unknown.
func TestAnswers(t *testing.T) {
	quick.LeaveOut(t)
	for _, tt := range []struct {
		name    string
		command string // that is answered
		answer  string
		accept  error
		policy  outbox.UnknownPolicy
		state   outbox.State
		unsure  bool
	}{
		{name: "taken", state: outbox.StateDelivered},
		{name: "greeted with a refusal", command: "CONNECT", answer: "554 no", state: outbox.StatePending},
		{name: "busy at the greeting", command: "CONNECT", answer: "421 later", state: outbox.StatePending},
		{name: "sender refused", command: "MAIL", answer: "550 no", state: outbox.StateDead},
		{name: "login wanted", command: "MAIL", answer: "530 login first", state: outbox.StatePending},
		{name: "recipient refused", command: "RCPT", answer: "550 no such user", state: outbox.StateDead},
		{name: "recipient refused for now", command: "RCPT", answer: "451 greylisted", state: outbox.StatePending},
		{name: "too many recipients", command: "RCPT", answer: "552 too many", state: outbox.StatePending},
		{name: "mail refused", command: "DATA", answer: "554 no", state: outbox.StateDead},
		{name: "mail refused at its end", accept: errors.New("554 spam"), state: outbox.StateDead},
		{name: "mail refused at its end for now", accept: errors.New("451 later"), state: outbox.StatePending},
		{name: "accepted otherwise", accept: errors.New("251 will forward"), state: outbox.StateDelivered},
		{name: "cut off behind the end, held", accept: net.ErrClosed, state: outbox.StateUnknown, unsure: true},
		{name: "cut off behind the end, sent again", accept: net.ErrClosed, policy: outbox.UnknownRetry, state: outbox.StatePending, unsure: true},
		{name: "an answer that is none", accept: errors.New("what?"), state: outbox.StateUnknown, unsure: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &box{}
			b.Answer = func(command string) string {
				if tt.command != "" && strings.HasPrefix(command, tt.command) {
					return tt.answer
				}
				return ""
			}
			b.Accept = func(outboxtest.Mail) error { return tt.accept }
			serve(t, b)
			e := fate(t, sink(t, smtpsink.Config{Addr: b.addr, From: "shop@example.com", TLS: smtpsink.NoTLS}), tt.policy, outbox.Message{})
			if e.State != tt.state || e.Unsure != tt.unsure {
				t.Errorf("it is %s, unsure %v: %s", e.State, e.Unsure, e.Cause)
			}
		})
	}
	// A server that is not there, and one that never answers the last line.
	if e := fate(t, sink(t, smtpsink.Config{Addr: "127.0.0.1:1", From: "shop@example.com"}), outbox.UnknownHold, outbox.Message{}); e.State != outbox.StatePending {
		t.Errorf("without a server it is %s", e.State)
	}
	release := make(chan struct{})
	defer close(release)
	b := &box{}
	b.Accept = func(outboxtest.Mail) error { <-release; return nil }
	serve(t, b)
	if e := fate(t, sink(t, smtpsink.Config{Addr: b.addr, From: "shop@example.com", TLS: smtpsink.NoTLS}), outbox.UnknownHold, outbox.Message{}); e.State != outbox.StateUnknown {
		t.Errorf("without an answer in time it is %s", e.State)
	}
}

// A sink that cannot record that it is about to send does not send.
func TestNothingIsSentOffTheRecord(t *testing.T) {
	b := serve(t, &box{})
	o := failingMark{memory.NewOutbox()}
	if err := o.Enqueue(t.Context(), outbox.Message{ID: "m", Topic: "t", Headers: map[string]string{"To": "a@example.com"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := outbox.New(outbox.Config{
		Store: o, Routes: []outbox.Route{{Sink: sink(t, smtpsink.Config{Addr: b.addr, From: "shop@example.com", TLS: smtpsink.NoTLS})}},
		Observer: &outbox.Observer{Retried: func(context.Context, outbox.Attempted) { cancel() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if e, err := o.Find(t.Context(), "m"); err != nil || e.State != outbox.StatePending || len(b.taken()) != 0 {
		t.Errorf("it is %s, and %d mails were sent (%v)", e.State, len(b.taken()), err)
	}
}

type failingMark struct{ *memory.Outbox }

func (failingMark) Mark(context.Context, outbox.Ref) error { return errors.New("no") }

func TestMail(t *testing.T) {
	b := serve(t, &box{})
	s := sink(t, smtpsink.Config{Addr: b.addr, From: "The Shop <shop@example.com>", TLS: smtpsink.NoTLS})
	m := outbox.Message{
		Headers: map[string]string{
			"to": "Jürgen <j@example.com>, b@example.org", "Cc": "c@example.com", "BCC": "hidden@example.com, b@example.org",
			"Subject": "Grüße " + strings.Repeat("und noch mehr ", 20), "X-Campaign": "7", "Reply-To": "help@example.com",
		},
		Payload: []byte("Hällo\n.\n..\nFrom here\n" + strings.Repeat("long ", 300)),
	}
	for range 2 {
		if e := fate(t, s, outbox.UnknownHold, m); e.State != outbox.StateDelivered {
			t.Fatalf("it is %s: %s", e.State, e.Cause)
		}
	}
	got := b.taken()
	date := func(s string) string { return s[:strings.Index(s, "Date:")] + s[strings.Index(s, "Subject:"):] } // two enqueueings
	if date(got[0].Data) != date(got[1].Data) {
		t.Error("two attempts differ")
	}
	if strings.Contains(got[0].Data, "hidden") || len(got[0].To) != 4 || !strings.Contains(got[0].From, "shop@example.com") {
		t.Errorf("from %s to %s:\n%s", got[0].From, got[0].To, got[0].Data)
	}
	for line := range strings.Lines(got[0].Data) {
		if len(line) > 100 || strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
			t.Errorf("a line is long or not ASCII: %q", line)
		}
	}
	parsed, err := mail.ReadMessage(strings.NewReader(got[0].Data))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(parsed.Header.Get("Subject"))
	if err != nil || subject != m.Headers["Subject"] {
		t.Errorf("the subject is %q, %v", subject, err)
	}
	if id := parsed.Header.Get("Message-ID"); id != "<id-1=2E2=3A3@example.com>" {
		t.Errorf("the Message-ID is %s", id)
	}
	if to, err := parsed.Header.AddressList("To"); err != nil || len(to) != 2 || to[0].Name != "Jürgen" {
		t.Errorf("To is %v, %v", to, err)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(parsed.Body))
	if err != nil || strings.TrimSuffix(string(text), "\n") != string(m.Payload) {
		t.Errorf("the text is %q, %v", text, err)
	}
	for name, want := range map[string]string{"X-Campaign": "7", "Mime-Version": "1.0", "Content-Type": "text/plain; charset=utf-8"} {
		if v := parsed.Header.Get(name); v != want {
			t.Errorf("%s is %q", name, v)
		}
	}
}

func TestEncodings(t *testing.T) {
	b := serve(t, &box{})
	s := sink(t, smtpsink.Config{Addr: b.addr, From: "shop@example.com", TLS: smtpsink.NoTLS})
	for _, tt := range []struct{ kind, payload, encoding string }{
		{"", "plain\r\ntext\n", "7bit"},
		{"text/html", "<b>\u00fc</b>", "quoted-printable"},
		{"text/plain", strings.Repeat("x", 2000), "quoted-printable"},
		{"application/pdf", "\x00\xff", "base64"},
		{"application/octet-stream", strings.Repeat("\r", 100), "base64"},
		{`multipart/mixed; boundary="x"`, "--x\r\n\r\ntext\r\n--x--\r\n", "7bit"},
		{`multipart/mixed; boundary="x"`, "\xff", ""},
		{"nonsense", "", ""},
	} {
		before := len(b.taken())
		h := map[string]string{"To": "a@example.com"}
		if tt.kind != "" {
			h["Content-Type"] = tt.kind
		}
		e := fate(t, s, outbox.UnknownHold, outbox.Message{Headers: h, Payload: []byte(tt.payload)})
		if tt.encoding == "" {
			if e.State != outbox.StateDead {
				t.Errorf("%s %q is %s", tt.kind, tt.payload, e.State)
			}
			continue
		}
		got := b.taken()
		if len(got) != before+1 || !strings.Contains(got[before].Data, "Content-Transfer-Encoding: "+tt.encoding+"\n") {
			t.Errorf("%s %q is %s: %s", tt.kind, tt.payload, e.State, e.Cause)
		}
	}
}

// Nothing in a message becomes a header, a recipient or a command.
func TestHeaderInjection(t *testing.T) {
	b := serve(t, &box{})
	s := sink(t, smtpsink.Config{Addr: b.addr, From: "shop@example.com", TLS: smtpsink.NoTLS, MaxRecipients: 3})
	for _, h := range []map[string]string{
		{"To": "a@example.com", "Subject": "x\r\nBcc: b@example.com"},
		{"To": "a@example.com", "Subject": "x\nBcc: b@example.com"},
		{"To": "a@example.com\r\nRCPT TO:<b@example.com>"},
		{"To": "a@example.com", "X-A: b\r\nBcc": "b@example.com"},
		{"To": "a@example.com", "X-A:": "b"},
		{"To": "a@example.com", "Message-Id": "<mine@example.com>"},
		{"To": "a@example.com", "Received": "from here"},
		{"To": "a@example.com", "Content-Transfer-Encoding": "7bit"},
		{"To": "a@example.com", "Content-Type": "text/plain\r\nX: y"},
		{"To": "a@example.com", "to": "b@example.com"},
		{"To": "a@example.com", "From": "x"},
		{"To": "nobody"},
		{"To": `"a\r\n"@example.com, <>`},
		{},
		{"To": "a@x.com, b@x.com", "Bcc": "c@x.com, d@x.com"},
	} {
		h := h
		if len(h) == 0 {
			h = map[string]string{"Subject": "for nobody"}
		}
		if e := fate(t, s, outbox.UnknownHold, outbox.Message{Headers: h}); e.State != outbox.StateDead {
			t.Errorf("with %q it is %s: %s", h, e.State, e.Cause)
		}
	}
	if n := len(b.taken()); n != 0 {
		t.Errorf("%d mails were sent", n)
	}
}

// Without STARTTLS nothing is sent, unless that is asked for; with it the password
// goes through TLS.
func TestTLS(t *testing.T) {
	https := httptest.NewUnstartedServer(nil) // for its certificate
	https.StartTLS()
	defer https.Close()
	roots := x509.NewCertPool()
	roots.AddCert(https.Certificate())
	var (
		mu   sync.Mutex
		auth []string
	)
	secure := &box{MailServer: outboxtest.MailServer{TLS: https.TLS}}
	secure.Answer = func(command string) string {
		if strings.HasPrefix(command, "AUTH") {
			mu.Lock()
			defer mu.Unlock()
			auth = append(auth, command)
			return "235 welcome"
		}
		return ""
	}
	serve(t, secure)
	open := serve(t, &box{})
	for _, tt := range []struct {
		name  string
		c     smtpsink.Config
		taken bool
	}{
		{"trusted", smtpsink.Config{Addr: secure.addr, TLSConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}, true},
		{"not trusted", smtpsink.Config{Addr: secure.addr}, false},
		{"of another name", smtpsink.Config{Addr: secure.addr, TLSConfig: &tls.Config{RootCAs: roots, ServerName: "other.test"}}, false},
		{"not offered", smtpsink.Config{Addr: open.addr}, false},
		{"not wanted", smtpsink.Config{Addr: open.addr, TLS: smtpsink.NoTLS}, true},
		{"implicit where it is not", smtpsink.Config{Addr: open.addr, TLS: smtpsink.ImplicitTLS}, false},
	} {
		before := len(secure.taken()) + len(open.taken())
		tt.c.From = "shop@example.com"
		if tt.c.TLS != smtpsink.NoTLS {
			tt.c.Username, tt.c.Password = "user", "secret"
		}
		e := fate(t, sink(t, tt.c), outbox.UnknownHold, outbox.Message{})
		n := len(secure.taken()) + len(open.taken()) - before
		if (n == 1) != tt.taken || (e.State == outbox.StateDelivered) != tt.taken || e.State != outbox.StateDelivered && e.State != outbox.StatePending {
			t.Errorf("%s: it is %s, %d mails were sent: %s", tt.name, e.State, n, e.Cause)
		}
	}
	if len(auth) != 1 || !strings.HasPrefix(auth[0], "AUTH PLAIN") {
		t.Errorf("it logged in by %q", auth)
	}

	// TLS from the first byte.
	l, err := tls.Listen("tcp", "127.0.0.1:0", https.TLS)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go secure.Serve(l)
	before := len(secure.taken())
	e := fate(t, sink(t, smtpsink.Config{
		Addr: l.Addr().String(), From: "shop@example.com", TLS: smtpsink.ImplicitTLS, TLSConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"},
	}), outbox.UnknownHold, outbox.Message{})
	if e.State != outbox.StateDelivered || len(secure.taken()) != before+1 {
		t.Errorf("with TLS from the start it is %s: %s", e.State, e.Cause)
	}
}

func TestServerThatTalksForEver(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for {
			if _, err := io.WriteString(c, "220-"+strings.Repeat("x", 1000)+"\r\n"); err != nil {
				return
			}
		}
	}()
	e := fate(t, sink(t, smtpsink.Config{Addr: l.Addr().String(), From: "shop@example.com"}), outbox.UnknownHold, outbox.Message{})
	if e.State != outbox.StatePending || !strings.Contains(e.Cause, "more than it may") {
		t.Errorf("it is %s: %s", e.State, e.Cause)
	}
}

func TestConfig(t *testing.T) {
	_, err := smtpsink.New(smtpsink.Config{Addr: "host", From: "x", TLS: smtpsink.NoTLS, Username: "u", Password: "secret", Hello: "a b", MaxRecipients: -1})
	for _, want := range []string{"Addr", "From", "Password needs TLS", "Hello", "MaxRecipients"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
