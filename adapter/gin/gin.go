package semelgin

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// New returns protect, a middleware of semelhttp.New, as a gin middleware. It
// may be used for any number of routes. The error says that protect is nil, or
// that the gin this program was built with is not one the adapter knows.
func New(protect func(http.Handler) http.Handler) (gin.HandlerFunc, error) {
	if protect == nil {
		return nil, errors.New("semelgin: the middleware is nil")
	}
	if err := checkFields(); err != nil {
		return nil, err
	}
	protected := protect(http.HandlerFunc(serve))
	return func(c *gin.Context) {
		call := newCall(c)
		defer call.leave()
		protected.ServeHTTP(call.writer, call.request)
	}, nil
}

type callKey struct{}

// Context returns a copy of the gin.Context of a request that is on its way
// through the adapter, with its route, parameters and keys: for the functions of
// a semelhttp.Config, above all Scope. Handlers are given their own. It is nil
// for other requests.
func Context(r *http.Request) *gin.Context {
	if call, ok := r.Context().Value(callKey{}).(*call); ok {
		return call.copied
	}
	return nil
}

// Route names the route of a request that is on its way through the adapter by
// its method and pattern, such as "POST /orders/:id": an operation name that is
// the same for all orders. It is empty for other requests.
func Route(r *http.Request) string {
	if c := Context(r); c != nil {
		return r.Method + " " + c.FullPath()
	}
	return ""
}

// call is one request on its way through the adapter.
type call struct {
	outer   *gin.Context // of gin's pool: only for the request's goroutine, until leave
	writer  *eager
	request *http.Request
	inline  bool // the rest of the chain ran on outer

	copied *gin.Context // what the handlers' context is made from
	fields fields
	errors []*gin.Error

	// own is the handlers' context, once they have returned.
	own atomic.Pointer[gin.Context]
}

func newCall(c *gin.Context) *call {
	call := &call{
		outer:  c,
		writer: &eager{c.Writer},
		copied: c.Copy(),
		fields: fieldsOf(c),
		errors: slices.Clone(c.Errors),
	}
	call.request = c.Request.WithContext(context.WithValue(c.Request.Context(), callKey{}, call))
	call.copied.Request = call.request
	return call
}

// serve is what the middleware protects: the rest of the chain.
func serve(w http.ResponseWriter, r *http.Request) {
	call, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("semelgin: the middleware does not pass on the request's context")
	}
	if w == http.ResponseWriter(call.writer) {
		// Not detached: the request's goroutine writes to the client itself.
		call.inline = true
		call.outer.Request = r
		call.outer.Next()
		return
	}
	c := gin.CreateTestContextOnly(&recorder{ResponseWriter: w, ctx: r.Context()}, call.fields.engine)
	base := c.Writer // c.Writer may be wrapped by the chain
	c.Request = r
	c.Params = call.copied.Params
	c.Keys = maps.Clone(call.copied.Keys)
	c.Errors = append(c.Errors, call.errors...)
	call.fields.set(c)

	c.Next()

	if len(c.Errors) > len(call.errors) && !base.Written() && base.Status() == http.StatusOK {
		base.WriteHeader(http.StatusInternalServerError)
	}
	base.WriteHeaderNow()
	call.own.Store(c)
}

// leave ends the call in the request's goroutine: gin must not run the rest of
// the chain again. The handlers may still be running.
func (call *call) leave() {
	if call.inline {
		return
	}
	c, own := call.outer, call.own.Load()
	if own == nil {
		c.Abort()
		return
	}
	c.Keys = own.Copy().Keys // what a handler left running may still change them
	c.Errors = append(c.Errors, own.Errors[min(len(call.errors), len(own.Errors)):]...)
	moveIndex(c, own)
}

// eager is the request's ResponseWriter. gin's puts the header off, so that what
// is meant as a trailer would be sent in front.
type eager struct{ gin.ResponseWriter }

func (w *eager) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if status >= 200 {
		w.WriteHeaderNow()
	}
}

func (w *eager) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recorder is semelhttp's ResponseWriter with what gin takes for granted.
type recorder struct {
	http.ResponseWriter
	ctx context.Context
}

func (w *recorder) Flush() { _ = w.FlushError() }

func (w *recorder) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

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
