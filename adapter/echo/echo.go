package semelecho

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
)

// Config says how to make the adapter.
type Config struct {
	// Protect is a middleware of semelhttp.New. Required.
	Protect func(http.Handler) http.Handler
	// Wrap makes a Context of the program's own type around plain, for
	// programs that have one in front of the adapter. outer is the request's
	// and must not be kept: Echo uses it again. Without Wrap, requests whose
	// Context is not Echo's own are answered with 500, and nothing is executed.
	// The type must embed echo.Context.
	Wrap func(outer, plain echo.Context) echo.Context
}

// New returns a middleware that may be used for any number of routes. The error
// says that Protect is nil, or that the Echo this program was built with is not
// one the adapter knows.
func New(c Config) (echo.MiddlewareFunc, error) {
	if c.Protect == nil {
		return nil, errors.New("semelecho: config: field Protect is nil")
	}
	if err := checkFields(); err != nil {
		return nil, err
	}
	protected := c.Protect(http.HandlerFunc(serve))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(outer echo.Context) error {
			call, err := c.newCall(outer, next)
			if err != nil {
				return err
			}
			protected.ServeHTTP(outer.Response(), call.request)
			return call.err
		}
	}, nil
}

type callKey struct{}

// Context returns the Context that the handler of a request on its way through
// the adapter will be given, with its path, parameters and values: for the
// functions of a semelhttp.Config, above all Scope. It must not be written to. It
// is nil for other requests.
func Context(r *http.Request) echo.Context {
	if call, ok := r.Context().Value(callKey{}).(*call); ok {
		return call.own
	}
	return nil
}

// Route names the route of a request that is on its way through the adapter by
// its method and path, such as "POST /orders/:id": an operation name that is the
// same for all orders. It is empty for other requests.
func Route(r *http.Request) string {
	if c := Context(r); c != nil {
		return r.Method + " " + c.Path()
	}
	return ""
}

// call is one request on its way through the adapter.
type call struct {
	outer   echo.Context // of Echo's pool: only for the request's goroutine
	own     echo.Context // the handler's
	request *http.Request
	next    echo.HandlerFunc
	err     error // of a handler that ran on outer
}

func (c *Config) newCall(outer echo.Context, next echo.HandlerFunc) (*call, error) {
	plain, own := unwrap(outer)
	switch {
	case plain == nil:
		return nil, fmt.Errorf("semelecho: the request's Context is a %T, which does not embed Echo's", outer)
	case !own && c.Wrap == nil:
		return nil, fmt.Errorf("semelecho: the request's Context is a %T; Config.Wrap must say how to make one", outer)
	}
	r := outer.Request()
	fresh := outer.Echo().NewContext(r, unwritable{})
	fresh.SetPath(outer.Path())
	fresh.SetParamNames(slices.Clone(outer.ParamNames())...)
	fresh.SetParamValues(outer.ParamValues()...)
	fresh.SetHandler(outer.Handler())
	fresh.SetLogger(outer.Logger())
	for name, value := range valuesOf(plain) {
		fresh.Set(name, value)
	}
	call := &call{outer: outer, own: fresh, next: next}
	if c.Wrap != nil {
		call.own = c.Wrap(outer, fresh)
	}
	call.request = r.WithContext(context.WithValue(r.Context(), callKey{}, call))
	call.own.SetRequest(call.request)
	return call, nil
}

// serve is what the middleware protects: the rest of the chain.
func serve(w http.ResponseWriter, r *http.Request) {
	call, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("semelecho: the middleware does not pass on the request's context")
	}
	if response, ok := w.(*echo.Response); ok && response == call.outer.Response() {
		// Not detached: the request's goroutine writes to the client itself.
		call.outer.SetRequest(r)
		call.err = call.next(call.outer)
		return
	}
	c := call.own
	c.SetRequest(r)
	c.SetResponse(echo.NewResponse(w, c.Echo()))
	if err := call.next(c); err != nil {
		c.Error(err)
		if !c.Response().Committed {
			c.Response().WriteHeader(http.StatusInternalServerError)
		}
	}
}

// unwritable is the ResponseWriter of a Context that is not a handler's yet.
type unwritable struct{}

var errUnwritable = errors.New("semelecho: this Context cannot be written to")

func (unwritable) Header() http.Header       { return http.Header{} }
func (unwritable) WriteHeader(int)           {}
func (unwritable) Write([]byte) (int, error) { return 0, errUnwritable }
