package semelclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/semelhttp"
)

// payload is a request body that is sent once or several times.
type payload struct {
	first  io.ReadCloser // for the first try; nil if it is empty
	length int64         // as Request.ContentLength
	// reopen returns the body for another try; nil if there is none to be had.
	reopen func() (io.ReadCloser, error)
}

// newPayload takes r's body over: it is closed when the first try is over, or
// before newPayload returns. A body that cannot be had again is read into
// memory, if hold is set, it is at most limit bytes long and not a stream.
// Nothing waits for it beyond the end of ctx, which is the first try's.
func newPayload(ctx context.Context, r *http.Request, hold bool, limit int64) (payload, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return payload{reopen: func() (io.ReadCloser, error) { return nil, nil }}, nil
	}
	body := interruptible(ctx, r.Body)
	if r.GetBody != nil || !hold || r.ContentLength < 0 || r.ContentLength > limit {
		return payload{first: body, length: r.ContentLength, reopen: r.GetBody}, nil
	}
	held, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		_ = body.Close()
		return payload{}, fmt.Errorf("read the request body: %w", err)
	}
	if int64(len(held)) > limit {
		return payload{first: &prefixed{io.MultiReader(bytes.NewReader(held), body), body}, length: r.ContentLength}, nil
	}
	if err := body.Close(); err != nil {
		return payload{}, fmt.Errorf("close the request body: %w", err)
	}
	if r.ContentLength > 0 && r.ContentLength != int64(len(held)) {
		return payload{}, errors.New("the request body is not as long as its ContentLength")
	}
	p := payload{length: int64(len(held)), reopen: func() (io.ReadCloser, error) {
		if len(held) == 0 && len(r.Trailer) == 0 {
			return nil, nil
		}
		return io.NopCloser(bytes.NewReader(held)), nil
	}}
	if len(r.Trailer) > 0 {
		p.length = r.ContentLength // trailers go with bodies of unknown length
	}
	p.first, _ = p.reopen()
	return p, nil
}

// prefixed reads from one and closes the other.
type prefixed struct {
	io.Reader
	io.Closer
}

// interruptible returns a body that reads from body until ctx ends: then it fails
// with ctx's cause, though body's own Read may not return for long.
func interruptible(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	if body == nil || body == http.NoBody || inMemory(body) {
		return body
	}
	s := &stream{body: body, closed: sync.OnceValue(body.Close)}
	s.PipeReader, s.out = io.Pipe()
	s.release = context.AfterFunc(ctx, func() {
		_ = s.out.CloseWithError(context.Cause(ctx))
		_ = s.closed()
	})
	return s
}

// inMemory reports whether body is one that http.NewRequest makes of what cannot
// keep a reader waiting. net/http sends it in one piece with the header.
func inMemory(body io.ReadCloser) bool {
	v := reflect.ValueOf(body)
	if v.Type() != reflect.TypeOf(io.NopCloser(bytes.NewReader(nil))) {
		return false
	}
	switch v.Field(0).Interface().(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// stream is a body that a goroutine of its own reads, from the first Read on
// until body has ended, or has returned from the Read that was running when the
// stream was closed or its context ended.
type stream struct {
	*io.PipeReader
	out     *io.PipeWriter
	body    io.ReadCloser
	closed  func() error // body's Close, once
	begin   sync.Once
	release func() bool // from the context; reports whether that is news
}

func (s *stream) Read(p []byte) (int, error) {
	s.begin.Do(func() { go s.pump() })
	return s.PipeReader.Read(p)
}

func (s *stream) pump() {
	_, err := io.Copy(s.out, s.body)
	if closed := s.closed(); err == nil {
		err = closed
	}
	s.release()
	_ = s.out.CloseWithError(err)
}

// Close does not wait for a Read of the body that is running, nor for a Close
// that waits for it.
func (s *stream) Close() error {
	_ = s.PipeReader.Close()
	unread := false
	s.begin.Do(func() { unread = true })
	running := s.release()
	if unread {
		return s.closed()
	}
	if running {
		go func() { _ = s.closed() }()
	}
	return nil
}

// tryBody is a response body whose end is the end of its try.
type tryBody struct {
	io.ReadCloser
	end func()
}

func (b *tryBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *tryBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// tunnelBody is the body of a response with status 101, which is to be written
// to as well.
type tunnelBody struct {
	tryBody
	io.Writer
}

// endWith has the try end with resp's body.
func endWith(resp *http.Response, end func()) {
	if resp.Body == nil || resp.Body == http.NoBody {
		end()
		return
	}
	body := tryBody{resp.Body, end}
	if w, ok := resp.Body.(io.Writer); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &tunnelBody{body, w}
		return
	}
	resp.Body = &body
}

// problemOf returns the problem that a's answer is, if it is one that can be
// read within limit. It leaves the answer with the whole body.
func problemOf(a *attempt, limit time.Duration) semelhttp.Problem {
	resp := a.resp
	contentType := resp.Header.Get("Content-Type")
	if resp.Body == nil || resp.Header.Get("Content-Encoding") != "" {
		return semelhttp.Problem{}
	}
	if _, err := semelhttp.ParseProblem(http.NoBody, contentType); err == semelhttp.ErrNotProblem {
		return semelhttp.Problem{} // whose body may take its time
	}
	b := &ahead{body: resp.Body, done: make(chan struct{})}
	resp.Body = b
	go b.fill()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.done:
	case <-timer.C:
		return semelhttp.Problem{}
	case <-a.ctx.Done():
		return semelhttp.Problem{}
	}
	// Of a body that broke off, or goes on, nothing parses.
	p, err := semelhttp.ParseProblem(bytes.NewReader(b.read), contentType)
	if err != nil {
		return semelhttp.Problem{}
	}
	return p
}

// ahead is a response body whose beginning another goroutine reads. That ends
// with the beginning, or with the try.
type ahead struct {
	body io.ReadCloser
	done chan struct{}
	read []byte // once done is closed, as is err
	err  error  // what came after read; nil if there is more
	at   int
}

func (b *ahead) fill() {
	defer close(b.done)
	b.read, b.err = io.ReadAll(io.LimitReader(b.body, semelhttp.MaxProblemBytes+1))
	if b.err == nil && len(b.read) <= semelhttp.MaxProblemBytes {
		b.err = io.EOF
	}
}

func (b *ahead) Read(p []byte) (int, error) {
	<-b.done
	if b.at < len(b.read) {
		n := copy(p, b.read[b.at:])
		b.at += n
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.body.Read(p)
}

// Close does not close the body under its reader. The end of the try, which
// comes with it, ends the Read that is running.
func (b *ahead) Close() error {
	select {
	case <-b.done:
		return b.body.Close()
	default:
	}
	go func() {
		<-b.done
		_ = b.body.Close()
	}()
	return nil
}
