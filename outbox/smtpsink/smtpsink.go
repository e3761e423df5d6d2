// Package smtpsink sends the messages of an outbox as mail.
//
// A message's payload is the mail's text. Its headers are those of the mail: To, Cc,
// Bcc, Subject, From, Reply-To, Content-Type, those of threads and lists, and any
// that begins with X-. The Message-ID is derived from the message's id. All attempts
// send the same bytes.
//
// # What cannot be known
//
// A mail server accepts a mail when it has read its last line, and then responds.
// If the connection breaks or a process dies in between, it cannot be known whether
// the mail was sent, because SMTP has no way to ask. This sink records that it is
// about to send the last line. If no response arrives, the route's policy decides:
//
//   - [outbox.UnknownHold], the default: the message is unknown until somebody decides. No
//     mail is sent twice. Some unknown messages were sent and some were not.
//   - [outbox.UnknownRetry]: it is sent again. No mail is lost. Some recipients
//     get two copies with the same Message-ID, and most programs show both.
//
// A failure before the last line is tried again under either policy.
package smtpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/outbox"
)

// TLS says how the connection is protected.
type TLS uint8

const (
	// StartTLS connects without TLS and continues only after STARTTLS has
	// succeeded.
	StartTLS TLS = iota
	// ImplicitTLS connects with TLS, as is usual at port 465.
	ImplicitTLS
	// NoTLS sends mail without TLS and without a password. Use it only for a
	// server on the same host.
	NoTLS
)

// Config configures a Sink. Addr is required.
type Config struct {
	// Addr is the server's host and port.
	Addr string
	// From is the sender of messages without a From header, such as "Shop
	// <shop@example.com>".
	From string
	// TLS says how the connection is protected. Default StartTLS.
	TLS TLS
	// TLSConfig is the TLS configuration. Nil means the default.
	TLSConfig *tls.Config
	// Username and Password are for AUTH PLAIN, and need TLS.
	Username, Password string
	// Hello is the host name in the EHLO command. Default localhost.
	Hello string
	// Domain is the domain of Message-IDs. Default: that of the sender.
	Domain string
	// MaxRecipients is the maximum number of recipients of a mail. Default 100.
	MaxRecipients int
	// DialTimeout limits connecting. Default 10 s. The route's Timeout limits the
	// whole attempt.
	DialTimeout time.Duration
}

// Sink is an outbox.Sink that sends mail, each over its own connection. New
// makes one.
type Sink struct {
	config Config
	host   string
	from   *mail.Address
}

// New returns a sink. It does not connect.
func New(c Config) (*Sink, error) {
	if c.Hello == "" {
		c.Hello = "localhost"
	}
	if c.MaxRecipients == 0 {
		c.MaxRecipients = 100
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 10 * time.Second
	}
	s := &Sink{config: c}
	var errs []error
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil || host == "" {
		errs = append(errs, errors.New("field Addr must be a host and a port"))
	}
	s.host = host
	if c.From != "" {
		if s.from, err = mail.ParseAddress(c.From); err != nil {
			errs = append(errs, errors.New("field From is not an address"))
		}
	}
	if c.TLS > NoTLS {
		errs = append(errs, errors.New("field TLS is not a known value"))
	}
	if c.TLS == NoTLS && c.Password != "" {
		errs = append(errs, errors.New("field Password needs TLS"))
	}
	if strings.ContainsFunc(c.Hello+c.Domain, func(r rune) bool { return isControl(r) || strings.ContainsRune(" <>@", r) }) {
		errs = append(errs, errors.New("fields Hello and Domain must be names of hosts"))
	}
	if c.MaxRecipients < 0 || c.DialTimeout < 0 {
		errs = append(errs, errors.New("fields MaxRecipients and DialTimeout must be positive"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("smtpsink: config: %w", err)
	}
	return s, nil
}

// Deliver implements outbox.Sink. A message is dead if it is not a valid mail, or
// if the server refuses its sender, recipients or text with a 5xx code. Other
// failures are tried again. If one of several recipients is refused, the mail is
// sent to none.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) error {
	l, err := s.compose(d)
	if err != nil {
		return outbox.Permanent(fmt.Errorf("smtpsink: %w", err))
	}
	dialer := &net.Dialer{Timeout: s.config.DialTimeout}
	raw, err := dialer.DialContext(ctx, "tcp", s.config.Addr)
	if err != nil {
		return fmt.Errorf("smtpsink: %w", err)
	}
	conn := net.Conn(&boundedConn{Conn: raw})
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	c, err := s.greet(ctx, conn)
	if err != nil {
		return fmt.Errorf("smtpsink: %w", err)
	}
	if err := c.Mail(l.from); err != nil {
		return refused("the sender", err)
	}
	for _, to := range l.to {
		if err := c.Rcpt(to); err != nil {
			return refused("a recipient", err)
		}
	}
	w, err := c.Data()
	if err != nil {
		return refused("the mail", err)
	}
	if _, err := w.Write(l.data); err != nil {
		return fmt.Errorf("smtpsink: %w", err)
	}
	// All is written but the last line, with which the server takes over.
	if err := d.BeforeEffect(ctx); err != nil {
		return err
	}
	err = w.Close()
	var answer *textproto.Error
	switch {
	case err == nil, errors.As(err, &answer) && answer.Code/100 == 2:
		_, _ = c.Text.Cmd("QUIT") // the answer does not matter, and is not waited for
		return nil
	case answer != nil && answer.Code/100 == 5:
		return refused("the mail", err)
	case answer != nil && answer.Code/100 == 4:
		return outbox.RetryAfter(0, fmt.Errorf("smtpsink: the server did not take the mail: %w", err))
	}
	return outbox.Uncertain(fmt.Errorf("smtpsink: the server did not say whether it took the mail: %w", err))
}

// greet begins the session.
func (s *Sink) greet(ctx context.Context, conn net.Conn) (*smtp.Client, error) {
	t := s.config.TLSConfig.Clone()
	if t == nil {
		t = &tls.Config{}
	}
	if t.ServerName == "" {
		t.ServerName = s.host
	}
	if s.config.TLS == ImplicitTLS {
		secure := tls.Client(conn, t)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secure
	}
	c, err := smtp.NewClient(conn, s.host)
	if err != nil {
		return nil, err
	}
	if err := c.Hello(s.config.Hello); err != nil {
		return nil, err
	}
	if s.config.TLS == StartTLS {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return nil, errors.New("the server does not offer STARTTLS, and nothing is sent in the clear")
		}
		if err := c.StartTLS(t); err != nil {
			return nil, err
		}
	}
	if s.config.Username != "" {
		if err := c.Auth(smtp.PlainAuth("", s.config.Username, s.config.Password, s.host)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// refused tells an answer of 5xx, which is for good, from other failures. That a
// server wants to be logged in to, or has too many recipients for now, is not the
// message's fault.
func refused(what string, err error) error {
	told := fmt.Errorf("smtpsink: %s was refused: %w", what, err)
	answer, ok := errors.AsType[*textproto.Error](err)
	switch {
	case !ok:
		return fmt.Errorf("smtpsink: %w", err)
	case answer.Code/100 == 5 && answer.Code != 530 && answer.Code != 552:
		return outbox.Permanent(told)
	}
	return outbox.RetryAfter(0, told)
}

// maxAnswers is how much a server may say in a session.
const maxAnswers = 1 << 20

// boundedConn is a connection to a server that says no more than that.
type boundedConn struct {
	net.Conn
	read atomic.Int64
}

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.read.Load() > maxAnswers {
		return 0, errors.New("the server says more than it may")
	}
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}
