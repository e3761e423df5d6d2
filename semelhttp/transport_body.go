package semelhttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
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
func newPayload(r *http.Request, hold bool, limit int64) (payload, error) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return payload{reopen: func() (io.ReadCloser, error) { return nil, nil }}, nil
	case r.GetBody != nil:
		return payload{first: r.Body, length: r.ContentLength, reopen: r.GetBody}, nil
	case !hold, r.ContentLength < 0, r.ContentLength > limit:
		return payload{first: r.Body, length: r.ContentLength}, nil
	}
	held, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		_ = r.Body.Close()
		return payload{}, fmt.Errorf("read the request body: %w", err)
	}
	if int64(len(held)) > limit {
		return payload{first: &prefixed{io.MultiReader(bytes.NewReader(held), r.Body), r.Body}, length: r.ContentLength}, nil
	}
	if err := r.Body.Close(); err != nil {
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

// problemOf returns the problem that resp is, if it is one, and leaves resp's
// body as it was.
func problemOf(resp *http.Response) (Problem, bool) {
	if resp.Body == nil || resp.Header.Get("Content-Encoding") != "" {
		return Problem{}, false
	}
	var read bytes.Buffer
	body := resp.Body
	p, err := ParseProblem(io.TeeReader(body, &read), resp.Header.Get("Content-Type"))
	if read.Len() > 0 {
		resp.Body = &prefixed{io.MultiReader(&read, body), body}
	}
	return p, err == nil
}
