package probe

import (
	"bufio"
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/probe/plan"
)

var readOnly = &sql.TxOptions{ReadOnly: true}

// sinkLimits limit what a target can make a sink hold.
type sinkLimits struct {
	each       int // bytes of a delivery; the rest of it is not kept
	all        int // bytes of all deliveries, those under way included
	deliveries int
	conns      int // at once
}

// The connections are more than the widest race has requests.
var defaultSinkLimits = sinkLimits{each: 1 << 20, all: 64 << 20, deliveries: 10_000, conns: 1000}

// maxSinkHead bounds the head of an HTTP delivery and maxSinkLine a line of SMTP,
// in bytes.
const (
	maxSinkHead = 64 << 10
	maxSinkLine = 4 << 10
)

// sink is a server that the target sends to. It keeps what it got, whole. Once a
// limit kept it from that, it counts nothing any more: a count that lacks a
// delivery would tell of an effect that was lost.
type sink struct {
	net.Listener
	limits sinkLimits
	http   *http.Server
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
	bytes  int
	got    []received
	full   error // why something was not taken
}

type received struct {
	raw []byte
	cut bool   // raw is not all of it
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
			r.sinks[sinkAddr(rd)] = newSink(l, rd.Webhook != nil, defaultSinkLimits)
		}
	}
	return nil
}

// newSink serves a listener until the sink is closed.
func newSink(l net.Listener, overHTTP bool, limits sinkLimits) *sink {
	s := &sink{Listener: l, limits: limits, conns: map[net.Conn]bool{}}
	if overHTTP {
		s.http = &http.Server{
			Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: maxSinkHead, ErrorLog: log.New(io.Discard, "", 0),
		}
		s.wg.Go(func() { _ = s.http.Serve(s) })
	} else {
		s.wg.Go(s.serveSMTP)
	}
	return s
}

// Accept is the listener's, but for connections beyond the limit: they are
// closed.
func (s *sink) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		counted := &sinkConn{Conn: c, sink: s}
		s.mu.Lock()
		room := !s.closed && len(s.conns) < s.limits.conns
		if room {
			s.conns[counted] = true
		} else if !s.closed {
			s.fill("it refused a connection, because %d were open", s.limits.conns)
		}
		s.mu.Unlock()
		if room {
			return counted, nil
		}
		_ = c.Close()
	}
}

// sinkConn is a connection that counts while it is open.
type sinkConn struct {
	net.Conn
	sink *sink
}

func (c *sinkConn) Close() error {
	c.sink.mu.Lock()
	delete(c.sink.conns, c)
	c.sink.mu.Unlock()
	return c.Conn.Close()
}

func (s *sink) close() {
	s.mu.Lock()
	s.closed = true
	open := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	if s.http != nil {
		_ = s.http.Close()
	}
	_ = s.Listener.Close()
	s.wg.Wait()
}

// fill records why something was not accepted; the first reason stays. mu must
// be held.
func (s *sink) fill(format string, args ...any) {
	if s.full == nil {
		s.full = fmt.Errorf("the sink was full: "+format, args...)
	}
}

// errFull reports that there is no room for a delivery.
var errFull = errors.New("the sink is full")

// delivery reads up to the limit of one delivery, and takes what it reads from
// the room that all have.
type delivery struct {
	s    *sink
	r    io.Reader
	took int
	cut  bool
}

func (r *delivery) Read(p []byte) (int, error) {
	if room := r.s.limits.each - r.took; len(p) > room {
		p = p[:room]
	}
	if len(p) == 0 {
		// Is there more? A delivery of just the size that is allowed is whole.
		var one [1]byte
		n, err := r.r.Read(one[:])
		if r.cut = n > 0; r.cut {
			err = io.EOF
		}
		return 0, err
	}
	n, err := r.r.Read(p)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.bytes+n > r.s.limits.all {
		r.s.fill("it has room for %d MiB", r.s.limits.all>>20)
		return 0, errFull
	}
	r.s.bytes += n
	r.took += n
	return n, err
}

// giveBack returns the room of what is not kept.
func (r *delivery) giveBack() {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.bytes -= r.took
}

// keep stores what was read, and reports whether there was room.
func (s *sink) keep(head []byte, body []byte, r *delivery, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.got) == s.limits.deliveries:
		s.fill("it had %d deliveries", s.limits.deliveries)
	case s.bytes+len(head) > s.limits.all:
		s.fill("it has room for %d MiB", s.limits.all>>20)
	default:
		s.bytes += len(head)
		s.got = append(s.got, received{slices.Concat(head, body), r.cut, id})
		return true
	}
	s.bytes -= r.took
	return false
}

// count returns how many of what came match, and the ids of those that have one.
// An error means that it cannot say, and never will.
func (s *sink) count(pattern *regexp.Regexp) (n int, ids []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full != nil {
		return 0, nil, s.full
	}
	for _, g := range s.got {
		if pattern != nil && !pattern.Match(g.raw) {
			if g.cut {
				return 0, nil, fmt.Errorf("the sink cut off a delivery after %d KiB, and cannot tell whether it matches", s.limits.each>>10)
			}
			continue
		}
		n++
		if g.id != "" {
			ids = append(ids, g.id)
		}
	}
	return n, ids, nil
}

// deliveryIDs are the headers by which receivers deduplicate deliveries.
var deliveryIDs = []string{"Webhook-Id", "X-Github-Delivery", "Idempotency-Key", "Ce-Id"}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s\r\n", r.Method, r.RequestURI)
	_ = r.Header.Write(&head)
	head.WriteString("\r\n")
	in := &delivery{s: s, r: r.Body}
	body, err := io.ReadAll(in)
	if err != nil {
		in.giveBack()
		if errors.Is(err, errFull) {
			w.WriteHeader(http.StatusInsufficientStorage)
		}
		return // it did not come whole, and the sender knows
	}
	id := ""
	for _, name := range deliveryIDs {
		if id = r.Header.Get(name); id != "" {
			break
		}
	}
	if !s.keep(head.Bytes(), body, in, id) {
		w.WriteHeader(http.StatusInsufficientStorage)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *sink) serveSMTP() {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			_ = s.smtp(c)
			_ = c.Close()
		})
	}
}

var errTooLong = errors.New("a line is too long")

// smtp takes mails, as much of RFC 5321 as clients need.
func (s *sink) smtp(c net.Conn) error {
	in := textproto.NewReader(bufio.NewReaderSize(io.LimitReader(c, int64(s.limits.all)), maxSinkLine))
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
		raw, err := in.R.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			_ = say("500 the line is too long")
			return errTooLong
		}
		if err != nil {
			return err
		}
		line := strings.TrimRight(string(raw), "\r\n")
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
			if envelope.Len()+len(line) > maxSinkHead {
				s.mu.Lock()
				s.fill("a mail had recipients of more than %d KiB", maxSinkHead>>10)
				s.mu.Unlock()
				reply = "452 too many recipients"
				break
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
			dot := in.DotReader()
			part := &delivery{s: s, r: dot}
			mail, err := io.ReadAll(part)
			if err == nil {
				_, err = io.Copy(io.Discard, dot) // what was cut off
			}
			if err != nil {
				part.giveBack()
				if errors.Is(err, errFull) {
					_ = say("452 the probe's sink is full")
				}
				return err
			}
			id := ""
			if h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(mail))).ReadMIMEHeader(); err == nil || len(h) > 0 {
				id = h.Get("Message-Id")
			}
			if !s.keep(envelope.Bytes(), mail, part, id) {
				reply = "452 the probe's sink is full"
			}
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
