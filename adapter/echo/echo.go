package semelecho

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/semelhq/semel/semelhttp"
)

// New returns protect, a middleware of semelhttp.New, as an Echo middleware. It
// may be used for any number of routes. New panics if protect is nil.
func New(protect func(http.Handler) http.Handler) echo.MiddlewareFunc {
	if protect == nil {
		panic("semelecho: the middleware is nil")
	}
	protected := protect(http.HandlerFunc(serve))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			call := &call{echo: c, next: next, writer: &writer{c.Response(), c}}
			ctx := context.WithValue(semelhttp.Attached(c.Request().Context()), callKey{}, call)
			protected.ServeHTTP(call.writer, c.Request().WithContext(ctx))
			return call.err
		}
	}
}

type callKey struct{}

// Context returns the Context of a request that is passing through the adapter.
// It is for the functions of a semelhttp.Config, such as Scope, which need the
// path, parameters and values. It must not be retained. It is nil for other
// requests.
func Context(r *http.Request) echo.Context {
	if call, ok := r.Context().Value(callKey{}).(*call); ok {
		return call.echo
	}
	return nil
}

// Route returns the method and path of the route of a request that is passing
// through the adapter, such as "POST /orders/:id": an operation name that is the
// same for all orders. It is empty for other requests, and if no route matches.
func Route(r *http.Request) string {
	if c := Context(r); c != nil && c.Path() != "" {
		return r.Method + " " + c.Path()
	}
	return ""
}

// call is one request on its way through the adapter.
type call struct {
	echo   echo.Context
	next   echo.HandlerFunc
	writer *writer
	err    error // of a handler that was not protected
}

// serve is what the middleware protects: the rest of the chain.
func serve(w http.ResponseWriter, r *http.Request) {
	call, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("semelecho: the middleware does not pass on the request's context")
	}
	c := call.echo
	request, front := c.Request(), c.Response()
	c.SetRequest(r)
	if w == http.ResponseWriter(call.writer) {
		call.err = call.next(c)
		return
	}
	defer func() {
		c.SetRequest(request)
		c.SetResponse(front)
	}()
	own := echo.NewResponse(w, c.Echo())
	own.Status = http.StatusOK // as Echo's own has it
	c.SetResponse(own)
	if err := call.next(c); err != nil {
		c.Error(err)
		if !own.Committed {
			own.WriteHeader(http.StatusInternalServerError)
		}
	}
}

// writer is the request's Response, for semelhttp.
type writer struct {
	*echo.Response
	echo echo.Context
}

// WriteHeader calls what was registered with Before in front of the adapter. An
// answer may begin while the handler runs, and they look for the header in the
// Context's Response.
func (w *writer) WriteHeader(status int) {
	now := w.echo.Response()
	defer w.echo.SetResponse(now)
	w.echo.SetResponse(w.Response)
	w.Response.WriteHeader(status)
}

// FlushError is Flush without Echo's panic where there is nothing to flush.
func (w *writer) FlushError() error { return http.NewResponseController(w.Writer).Flush() }
