package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxHead bounds the head of a response, in bytes. A head takes many times its
// size once it is parsed.
const maxHead = 1 << 20

// maxInterim is how many 1xx responses may come before the final one.
const maxInterim = 100

var errInterim = fmt.Errorf("%w: more than %d interim responses", ErrTooLarge, maxInterim)

// response1 is an HTTP/1.1 response being read by a goroutine that ends with the
// connection at the latest, which ends with the context. Its fields are valid once done is closed.
type response1 struct {
	done  chan struct{}
	rec   *recorder
	resp  *Response
	err   error // nil exactly if resp is whole
	ended time.Time
	// reusable: the connection is at the start of the next response.
	reusable bool
}

// read1 reads a response to a request, at most limit bytes of it.
func read1(ctx context.Context, c *conn, method string, limit int, over error) *response1 {
	a := &response1{done: make(chan struct{}), rec: &recorder{r: c.Conn, limit: limit, over: over}}
	go func() {
		defer close(a.done)
		a.read(method, limit)
		a.ended = time.Now()
		if a.err != nil && ctx.Err() != nil {
			a.err = context.Cause(ctx)
		}
		if a.err == nil {
			// A server that has answered need not read the rest of the request.
			_ = c.pipe.SetWriteDeadline(time.Unix(1, 0))
		}
	}()
	return a
}

func (a *response1) read(method string, limit int) {
	src := &failing{r: a.rec}
	br := bufio.NewReader(src)
	var interim []int
	for {
		// Limit each head, beyond what is there of it already.
		a.rec.limit = min(limit, len(a.rec.kept)+maxHead)
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			a.err = src.explain("no response can be read")
			return
		}
		a.rec.limit = limit
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			if len(interim) == maxInterim {
				a.err = errInterim
				return
			}
			interim = append(interim, resp.StatusCode)
			continue
		}
		a.resp = &Response{Status: resp.StatusCode, Proto: resp.Proto, Header: resp.Header, Interim: interim}
		_, a.resp.Reason, _ = strings.Cut(resp.Status, " ")
		body, err := io.ReadAll(resp.Body)
		a.resp.Body = body
		a.resp.Trailer = resp.Trailer
		if err != nil {
			a.resp.Truncated = true
			a.err = src.explain("the body cannot be read")
			return
		}
		a.reusable = !resp.Close && br.Buffered() == 0 && resp.StatusCode != http.StatusSwitchingProtocols
		return
	}
}

// failing remembers why reading ended: parsers put their own words, and the
// peer's, into errors.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil {
		f.err = err
	}
	return n, err
}

func (f *failing) explain(what string) error {
	switch {
	case f.err == nil:
		return fmt.Errorf("%w: %s", ErrProtocol, what)
	case errors.Is(f.err, ErrTooLarge) || errors.Is(f.err, ErrCut):
		return f.err
	}
	return fmt.Errorf("%w: %s: %w", ErrClosed, what, f.err)
}

// single1 is one exchange with HTTP/1.1.
func (s *Sender) single1(ctx context.Context, c *conn, m *message, cut Cut, x *Exchange) {
	defer c.breakOn(ctx)()
	limit, over := s.cfg.MaxResponse, ErrTooLarge
	if cut.At == AfterFirstByte {
		limit, over = 1, ErrCut
	}
	a := read1(ctx, c, m.req.Method, limit, over)
	all := m.bytes()
	part := all
	if cut.At == BeforeLastByte {
		part = all[:len(all)-1]
	}
	err := x.write1(c, part, len(all))
	switch {
	case cut.At == AfterFirstByte:
		<-a.done
		x.Cut = errors.Is(a.err, ErrCut)
	case cut.At != 0 && err == nil:
		x.Acked = c.awaitAcked(ctx, a.done)
		select {
		case <-a.done: // the server was faster
		default:
			x.Cut = ctx.Err() == nil
		}
	}
	if x.Cut {
		c.cut(cut.By)
	}
	<-a.done
	x.conclude1(a, err)
}

// write1 writes the next part of a request of so many bytes in all. What could
// not be written is as good as lost: nothing is written twice.
func (x *Exchange) write1(c *conn, part []byte, all int) error {
	if x.Timing.FirstWrite.IsZero() {
		x.Timing.FirstWrite = time.Now()
	}
	before := c.pipe.count()
	n, err := c.Write(part)
	x.Sent = append(x.Sent, part[:n]...)
	switch {
	case err == nil && len(x.Sent) == all:
		x.Delivery = Unanswered
		x.Timing.LastWrite = time.Now()
	case c.pipe.count() > before:
		x.Delivery = Partial
	}
	return err
}

// conclude1 writes down what came of it. The response has ended; written is the
// error of the write.
func (x *Exchange) conclude1(a *response1, written error) {
	x.Received = a.rec.kept
	x.Timing.FirstByte = a.rec.first
	x.Timing.Done = a.ended
	x.Err = a.err
	switch {
	case a.err != nil && x.Cut:
		x.Err = ErrCut
	case a.resp == nil && written != nil && errors.Is(a.err, ErrClosed):
		x.Err = fmt.Errorf("%w; and writing failed: %w", a.err, written)
	}
	if a.resp != nil {
		x.Response = a.resp
		x.Delivery = Answered
	}
}
