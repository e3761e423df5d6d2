package outboxtest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strings"
)

// Mail is a mail that a MailServer has accepted.
type Mail struct {
	From string
	To   []string
	Data string // with lines that end in a line feed
}

// MailServer speaks as much SMTP as tests of senders need.
type MailServer struct {
	// Accept is called with each mail after its last line, before the reply. The
	// text of the error is the reply; nil accepts the mail. If Accept returns
	// net.ErrClosed, the connection is closed instead.
	Accept func(Mail) error
	// Answer may reply to a command in place of the server; if it returns "", the
	// server replies. The command "CONNECT" stands for the greeting.
	Answer func(command string) string
	// TLS is what STARTTLS offers; nil for nothing.
	TLS *tls.Config
}

// Serve serves connections until l is closed.
func (s *MailServer) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = s.session(c) // ends when the sender does
		}()
	}
}

func (s *MailServer) session(c net.Conn) error {
	in := textproto.NewReader(bufio.NewReader(c))
	say := func(line string) error { _, err := fmt.Fprint(c, line, "\r\n"); return err }
	answer := func(command, usual string) (went bool, err error) {
		if s.Answer != nil {
			if a := s.Answer(command); a != "" {
				return false, say(a)
			}
		}
		return true, say(usual)
	}
	if ok, err := answer("CONNECT", "220 test"); err != nil || !ok {
		return errors.Join(err, net.ErrClosed)
	}
	var m Mail
	for {
		line, err := in.ReadLine()
		if err != nil {
			return err
		}
		verb, rest, _ := strings.Cut(line, " ")
		switch strings.ToUpper(verb) {
		case "EHLO":
			usual := "250 test"
			if s.TLS != nil {
				usual = "250-test\r\n250-AUTH PLAIN\r\n250 STARTTLS"
			}
			_, err = answer(line, usual)
		case "STARTTLS":
			var ok bool
			if ok, err = answer(line, "220 go on"); ok && err == nil {
				secure := tls.Server(c, s.TLS)
				c, in = secure, textproto.NewReader(bufio.NewReader(secure))
			}
		case "MAIL":
			m = Mail{From: rest}
			_, err = answer(line, "250 yes")
		case "RCPT":
			m.To = append(m.To, rest)
			_, err = answer(line, "250 yes")
		case "DATA":
			var ok bool
			if ok, err = answer(line, "354 go on"); !ok || err != nil {
				break
			}
			data, err := in.ReadDotBytes()
			if err != nil {
				return err // the last line has not come
			}
			m.Data = string(data)
			usual := "250 taken"
			if err := s.Accept(m); errors.Is(err, net.ErrClosed) {
				return err
			} else if err != nil {
				usual = err.Error()
			}
			if err := say(usual); err != nil {
				return err
			}
		case "QUIT":
			return say("221 bye")
		default:
			_, err = answer(line, "250 yes")
		}
		if err != nil {
			return err
		}
	}
}
