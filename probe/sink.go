package probe

import (
	"bufio"
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/probe/plan"
)

var readOnly = &sql.TxOptions{ReadOnly: true}

// Limits of sinks. What is larger is cut, what is more is not taken.
const (
	maxReceived = 1 << 20
	maxKept     = 10000
)

// sink is a server that the target sends to. It keeps what it got, whole.
type sink struct {
	l    net.Listener
	http *http.Server
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool // smtp
	got    []received
}

type received struct {
	raw []byte
	id  string // that the delivery carries itself; empty for none
}

func sinkAddr(rd *plan.Reader) string {
	if rd.Webhook != nil {
		return "http " + rd.Webhook.Listen
	}
	return "smtp " + rd.SMTP.Listen
}

// openSinks opens all sinks of the plan.
func (r *runner) openSinks() error {
	listen := r.o.Listen
	if listen == nil {
		listen = net.Listen
	}
	for _, op := range r.operations() {
		for i := range op.Readers {
			rd := &op.Readers[i]
			if rd.Webhook == nil && rd.SMTP == nil || r.sinks[sinkAddr(rd)] != nil {
				continue
			}
			at := ""
			if rd.Webhook != nil {
				at = rd.Webhook.Listen
			} else {
				at = rd.SMTP.Listen
			}
			l, err := listen("tcp", at)
			if err != nil {
				return fmt.Errorf("the sink of reader %s cannot be opened: %w", rd.Name, err)
			}
			s := &sink{l: l, conns: map[net.Conn]bool{}}
			r.sinks[sinkAddr(rd)] = s
			if rd.Webhook != nil {
				s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
				s.wg.Go(func() { _ = s.http.Serve(l) })
			} else {
				s.wg.Go(s.serveSMTP)
			}
		}
	}
	return nil
}

func (s *sink) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	if s.http != nil {
		_ = s.http.Close()
	}
	_ = s.l.Close()
	s.wg.Wait()
}

func (s *sink) keep(raw []byte, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) < maxKept {
		s.got = append(s.got, received{bytes.Clone(raw), id})
	}
}

// count returns how many of what came match, and the ids of those that have one.
func (s *sink) count(pattern *regexp.Regexp) (n int, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.got {
		if pattern != nil && !pattern.Match(g.raw) {
			continue
		}
		n++
		if g.id != "" {
			ids = append(ids, g.id)
		}
	}
	return n, ids
}

// deliveryIDs are the headers by which receivers deduplicate deliveries.
var deliveryIDs = []string{"Webhook-Id", "X-Github-Delivery", "Idempotency-Key", "Ce-Id"}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var raw bytes.Buffer
	fmt.Fprintf(&raw, "%s %s\r\n", r.Method, r.RequestURI)
	_ = r.Header.Write(&raw)
	raw.WriteString("\r\n")
	if _, err := io.Copy(&raw, io.LimitReader(r.Body, maxReceived)); err != nil {
		return // it did not come whole, and the sender knows
	}
	id := ""
	for _, name := range deliveryIDs {
		if id = r.Header.Get(name); id != "" {
			break
		}
	}
	s.keep(raw.Bytes(), id)
	w.WriteHeader(http.StatusNoContent)
}

func (s *sink) serveSMTP() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			_ = s.smtp(c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

var errTooLong = errors.New("a line or mail is too long")

// smtp takes mails, as much of RFC 5321 as clients need.
func (s *sink) smtp(c net.Conn) error {
	in := textproto.NewReader(bufio.NewReader(io.LimitReader(c, 64*maxReceived)))
	say := func(line string) error {
		_, err := io.WriteString(c, line+"\r\n")
		return err
	}
	if err := say("220 probe ESMTP"); err != nil {
		return err
	}
	var envelope bytes.Buffer
	recipients := 0
	for {
		if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			return err
		}
		line, err := in.ReadLine()
		if err != nil {
			return err
		}
		verb, _, _ := strings.Cut(line, " ")
		reply := "250 OK"
		switch strings.ToUpper(verb) {
		case "EHLO":
			reply = "250-probe\r\n250 8BITMIME"
		case "HELO", "NOOP":
		case "RSET":
			envelope.Reset()
			recipients = 0
		case "MAIL", "RCPT":
			if strings.EqualFold(verb, "RCPT") {
				recipients++
			}
			if envelope.Len()+len(line) > maxReceived {
				return errTooLong
			}
			envelope.WriteString(line + "\r\n")
		case "DATA":
			if recipients == 0 {
				reply = "503 no recipient"
				break
			}
			if err := say("354 go on"); err != nil {
				return err
			}
			mail, err := io.ReadAll(io.LimitReader(in.DotReader(), maxReceived+1))
			if err != nil {
				return err
			}
			if len(mail) > maxReceived {
				return errTooLong
			}
			id := ""
			if h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(mail))).ReadMIMEHeader(); err == nil || len(h) > 0 {
				id = h.Get("Message-Id")
			}
			s.keep(append(envelope.Bytes(), mail...), id)
			envelope.Reset()
			recipients = 0
		case "QUIT":
			return say("221 bye")
		default:
			reply = "502 not implemented"
		}
		if err := say(reply); err != nil {
			return err
		}
	}
}
