package semelgin

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/semelhq/semel/semelhttp"
)

// New returns protect, a middleware of semelhttp.New, as a gin middleware. It
// may be used for any number of routes. New panics if protect is nil.
func New(protect func(http.Handler) http.Handler) gin.HandlerFunc {
	if protect == nil {
		panic("semelgin: the middleware is nil")
	}
	protected := protect(http.HandlerFunc(serve))
	return func(c *gin.Context) {
		call := &call{gin: c, writer: &writer{c.Writer}}
		ctx := context.WithValue(semelhttp.Attached(c.Request.Context()), callKey{}, call)
		protected.ServeHTTP(call.writer, c.Request.WithContext(ctx))
		if !call.ran {
			c.Abort()
		}
	}
}

type callKey struct{}

// Context returns the gin.Context of a request that is passing through the
// adapter. It is for the functions of a semelhttp.Config, such as Scope, which
// need the route, parameters and keys. It must not be retained. It is nil for
// other requests.
func Context(r *http.Request) *gin.Context {
	if call, ok := r.Context().Value(callKey{}).(*call); ok {
		return call.gin
	}
	return nil
}

// Route returns the method and pattern of the route of a request that is
// passing through the adapter, such as "POST /orders/:id": an operation name
// that is the same for all orders. It is empty for other requests, and if no
// route matches.
func Route(r *http.Request) string {
	if c := Context(r); c != nil && c.FullPath() != "" {
		return r.Method + " " + c.FullPath()
	}
	return ""
}

// call is one request on its way through the adapter.
type call struct {
	gin    *gin.Context
	writer *writer
	ran    bool // the rest of the chain has been called
}

// serve is what the middleware protects: the rest of the chain.
func serve(w http.ResponseWriter, r *http.Request) {
	call, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("semelgin: the middleware does not pass on the request's context")
	}
	c := call.gin
	call.ran = true
	request, front := c.Request, c.Writer
	c.Request = r
	if w == http.ResponseWriter(call.writer) { // it is not protected
		c.Next()
		return
	}
	defer func() { c.Request, c.Writer = request, front }()
	// The context that gin makes here is for its writer only.
	own := gin.CreateTestContextOnly(&recorder{w, r.Context()}, new(gin.Engine)).Writer
	own.WriteHeader(front.Status()) // 404 if there is no route
	c.Writer = own                  // the chain may wrap it
	noted := len(c.Errors)

	c.Next()

	if len(c.Errors) > noted && !own.Written() && own.Status() == http.StatusOK {
		own.WriteHeader(http.StatusInternalServerError)
	}
	own.WriteHeaderNow()
}

// writer is the request's ResponseWriter, for semelhttp.
type writer struct{ gin.ResponseWriter }

// WriteHeader sends a header that announces trailers at once. gin puts it off
// until there is a body, and trailers of an answer without one would become
// part of it.
func (w *writer) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if len(w.Header()["Trailer"]) > 0 {
		w.WriteHeaderNow()
	}
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recorder is semelhttp's ResponseWriter with what gin takes for granted.
type recorder struct {
	http.ResponseWriter
	ctx context.Context
}

func (w *recorder) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack is refused like semelhttp does; gin would panic instead.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// CloseNotify is what gin's Stream waits for beside the handler. The context
// knows best whether the client's leaving matters.
func (w *recorder) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}
