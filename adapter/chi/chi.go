package semelchi

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// New returns protect, a middleware of semelhttp.New, for use in a chi router. It
// panics if protect is nil.
func New(protect func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	if protect == nil {
		panic("semelchi: the middleware is nil")
	}
	return func(next http.Handler) http.Handler {
		protected := protect(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Only who states a preference can be answered before the handler returns.
			if route := chi.RouteContext(r.Context()); route != nil && len(r.Header["Prefer"]) > 0 {
				r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route.Clone()))
			}
			protected.ServeHTTP(w, r)
		})
	}
}

// Route returns the method and pattern of a request's route, such as "POST
// /orders/{id}": an operation name that is the same for all orders. It is empty
// if no route is known.
func Route(r *http.Request) string {
	pattern := chi.RouteContext(r.Context()).RoutePattern()
	if pattern == "" {
		return ""
	}
	return r.Method + " " + pattern
}
