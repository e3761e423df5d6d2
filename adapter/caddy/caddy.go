package semelcaddy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

func init() {
	caddy.RegisterModule(&Handler{})
	httpcaddyfile.RegisterHandlerDirective("semel", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		handler := &Handler{}
		return handler, handler.UnmarshalCaddyfile(h.Dispenser)
	})
	// Behind authentication, and within encode: what is recorded is not encoded
	// for the client that happened to be the first.
	httpcaddyfile.RegisterDirectiveOrder("semel", httpcaddyfile.Before, "reverse_proxy")
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)

// Handler is the module http.handlers.semel: a middleware that makes protected
// requests take effect once. Its fields are the settings, by their JSON names;
// those of the Caddyfile are the same. Settings that are left out have their
// defaults.
type Handler struct {
	// Store is where records are kept: sqlite:PATH or the URL of a PostgreSQL
	// database, postgres://user@host/database. It may hold global placeholders,
	// such as {env.SEMEL_STORE} or {file./run/secrets/store}. Handlers with the
	// same store and the same limits of executions and waiters share it, also
	// across reloads. Required.
	Store string `json:"store,omitempty"`

	// Tenant is a text with at most one placeholder, whose value must not be
	// empty. Default: there is one tenant, which has no name.
	Tenant string `json:"tenant,omitempty"`
	// Actor is who the caller is: texts with one placeholder each, such as
	// {http.auth.user.id}. A request for which one of them is empty is refused.
	Actor []string `json:"actor,omitempty"`
	// Credentials are request headers whose digest is the actor, where nothing
	// in front authenticates. It is not checked: a refreshed credential is
	// another actor, and a revoked one still gets its own replays. The digest is
	// the one that the command semel gateway makes. A request with none of them is
	// refused.
	Credentials []string `json:"credentials,omitempty"`
	// Shared lets requests through whose actor is empty: all of them share one
	// scope. One of Actor, Credentials and Shared is required.
	Shared bool `json:"shared,omitempty"`
	// Operation names what the requests do, such as payments.create. Default: the
	// method, and the path as the client sent it.
	Operation string `json:"operation,omitempty"`

	// Key is required or optional: whether a request that would be protected but
	// has no key is refused, or passes unprotected. Default: optional.
	Key string `json:"key,omitempty"`
	// StrictKeys refuses keys that are not a Structured Field String.
	StrictKeys bool `json:"strict_keys,omitempty"`
	// Methods are those that are protected, of POST, PATCH, PUT and DELETE.
	// Default: POST and PATCH.
	Methods []string `json:"methods,omitempty"`

	// Lease is how long a claim outlives a Caddy that died, Deadline how long one
	// execution may take, and Retention how long an answer is replayed. Defaults:
	// 15 s, 10 min, 24 h.
	Lease     caddy.Duration `json:"lease,omitempty"`
	Deadline  caddy.Duration `json:"deadline,omitempty"`
	Retention caddy.Duration `json:"retention,omitempty"`

	// InFlight says how a duplicate of a request that is being executed is
	// handled: reject, wait or accept. Wait is how long wait waits, and MaxWait
	// how long a client may ask to wait. Defaults: reject, 10 s, 30 s.
	InFlight string         `json:"in_flight,omitempty"`
	Wait     caddy.Duration `json:"wait,omitempty"`
	MaxWait  caddy.Duration `json:"max_wait,omitempty"`
	// Contract is the form of responses: ietf, stripe or oasis. Default: ietf.
	Contract string `json:"contract,omitempty"`
	// Prefix is the path, as clients see it, below which operations are shown. The
	// handler must get the requests for it. "off" leaves it out. Default:
	// /.well-known/idempotency.
	Prefix string `json:"prefix,omitempty"`

	// Unreached says how to treat a request for which reverse_proxy reached no
	// upstream. With hold, the default, its outcome is unknown, as after any other
	// error. With release it had no effect, and its key is free. Choose that only
	// where no handler between this one and reverse_proxy has effects of its own.
	Unreached string `json:"unreached,omitempty"`

	// MaxRequestBody and MaxResult limit the body of a request, which is refused
	// beyond it, and of a response, which is passed on but not kept beyond it, in
	// bytes. Default: 32 MiB each; MaxResult is at most 63 MiB.
	MaxRequestBody int64 `json:"max_request_body,omitempty"`
	MaxResult      int64 `json:"max_result,omitempty"`
	// MaxExecutions and MaxTenantExecutions bound the protected requests at the
	// same time, in all and of one tenant, and MaxWaiters those that wait for
	// another's answer. Defaults: 4,096, a quarter of that, 1,000.
	MaxExecutions       int `json:"max_executions,omitempty"`
	MaxTenantExecutions int `json:"max_tenant_executions,omitempty"`
	MaxWaiters          int `json:"max_waiters,omitempty"`

	log    *zap.Logger
	store  storeKey
	policy semel.Policy
	config semelhttp.Config // without what depends on the store
	outage *engine          // while there is no store

	credential func(http.Header) string // the actor by Credentials

	engine   atomic.Pointer[engine]
	attached atomic.Bool // holds a reference to the store by itself
	mu       sync.Mutex  // for what follows, and while attached changes
	cleaned  bool
	nextTry  time.Time // to open the store
}

// CaddyModule implements caddy.Module.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.semel", New: func() caddy.Module { return &Handler{} }}
}

// Provision implements caddy.Provisioner. A store that does not respond is not
// an error: protected requests get 503 until it does. A store that cannot be
// used until somebody repairs it is.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.log = ctx.Logger()
	if err := h.configure(); err != nil {
		return err
	}
	var err error
	if h.outage, err = h.newEngine(&sharedStore{guard: h.store.guardOf(noStore{}, nil)}); err != nil {
		return err
	}
	for _, part := range append([]string{h.Tenant}, h.Actor...) {
		if name := clientSays(part); name != "" {
			h.log.Warn("the scope is what the client says, unless something in front of this handler sets it", zap.String("placeholder", name))
		}
	}
	if err := h.tryOpen(); err != nil {
		if lasting(err) {
			return fmt.Errorf("the store cannot be used: %w", err)
		}
		h.log.Warn("the store cannot be opened: protected requests are answered with 503; trying again with those that come", zap.Error(err))
	}
	return nil
}

// Cleanup implements caddy.CleanerUpper. It neither waits for requests in
// flight in this handler nor affects them.
func (h *Handler) Cleanup() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleaned = true
	if !h.attached.Swap(false) {
		return nil
	}
	return h.store.leave()
}

// engine is what serves requests over one store.
type engine struct {
	store     *sharedStore
	protected http.Handler
	resources *semelhttp.Resources // nil for none
}

func (h *Handler) newEngine(s *sharedStore) (*engine, error) {
	guard, err := s.guard.With(h.policy)
	if err != nil {
		return nil, err
	}
	e, c := &engine{store: s}, h.config
	c.Guard, c.Spools = guard, s.spools
	if h.Prefix != "off" {
		e.resources, err = semelhttp.NewResources(semelhttp.ResourcesConfig{
			Guard: guard, Scope: c.Scope, Prefix: h.Prefix, Contract: c.Contract, MaxWait: max(c.MaxWait, 0),
		})
		if err != nil {
			return nil, err
		}
		c.Resources = e.resources
	}
	protect, err := semelhttp.New(c)
	if err != nil {
		return nil, err
	}
	e.protected = protect(http.HandlerFunc(h.run))
	return e, nil
}

// enter returns the engine, and what gives the store back that it holds. A
// request can come when Cleanup has run, on a connection that is still there,
// and then has the store opened again if need be.
func (h *Handler) enter() (e *engine, leave func()) {
	if !h.attached.Load() && !h.due() {
		return h.outage, func() {}
	}
	e, err := h.hold()
	if err != nil {
		h.log.Warn("the store cannot be opened: protected requests are answered with 503", zap.Error(err))
		return h.outage, func() {}
	}
	return e, func() { _ = h.store.leave() }
}

// due reports whether the caller is to try to open the store: one at a time, and
// not sooner than a while after the last.
func (h *Handler) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Before(h.nextTry) {
		return h.cleaned // whose store was open, or will not be missed
	}
	h.nextTry = now.Add(openTimeout + reopenAfter)
	return true
}

// tryOpen opens the store, and has it stay open for as long as the handler is in
// use.
func (h *Handler) tryOpen() error {
	if _, err := h.hold(); err != nil {
		return err
	}
	return h.store.leave()
}

// hold returns the engine with a reference to its store.
func (h *Handler) hold() (*engine, error) {
	s, err := h.store.hold()
	if err != nil {
		h.mu.Lock()
		h.nextTry = time.Now().Add(reopenAfter)
		h.mu.Unlock()
		return nil, err
	}
	if !h.attached.Load() {
		h.mu.Lock()
		if !h.attached.Load() && !h.cleaned {
			_, _ = h.store.hold() // cannot fail: it is open
			h.attached.Store(true)
			s.log.Store(h.log)
		}
		h.mu.Unlock()
	}
	e := h.engine.Load()
	if e == nil || e.store != s {
		if e, err = h.newEngine(s); err != nil {
			return nil, errors.Join(err, h.store.leave())
		}
		h.engine.Store(e)
	}
	return e, nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	ctx := r.Context()
	if outer, ok := ctx.Value(callKey{}).(*call); ok && outer.protected {
		return next.ServeHTTP(w, r) // by another of these handlers
	}
	e, leave := h.enter()
	defer leave()
	c := &call{next: next, writer: w, request: r}
	in := r.WithContext(context.WithValue(ctx, callKey{}, c))
	if original, ok := ctx.Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		// What tells operations and requests apart is what the client sent.
		in.URL, in.RequestURI = original.URL, original.RequestURI
		c.original = original
	}
	if e.resources != nil && e.resources.Serves(in) {
		e.resources.ServeHTTP(w, in)
		return nil
	}
	if len(r.Header["Prefer"]) > 0 {
		c.snapshot()
	}
	e.protected.ServeHTTP(w, in)
	return c.err
}

// configure checks the settings and makes what can be made of them. The error
// names everything that is wrong.
func (h *Handler) configure() error {
	var errs []error
	wrong := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf(name+" "+format, args...))
	}
	key, err := h.storeKey()
	if err != nil {
		errs = append(errs, fmt.Errorf("store %w", err))
	}
	h.store = key
	errs = append(errs, h.checkScope())
	oneOf := func(name string, value *string, names ...string) int {
		if *value == "" {
			*value = names[0]
		}
		for i, n := range names {
			if *value == n {
				return i
			}
		}
		wrong(name, "is %q; use %s", *value, strings.Join(names, " or "))
		return 0
	}
	oneOf("key", &h.Key, "optional", "required")
	oneOf("unreached", &h.Unreached, "hold", "release")
	inFlight := oneOf("in_flight", &h.InFlight, "reject", "wait", "accept")
	oneOf("contract", &h.Contract, "ietf", "stripe", "oasis")
	contract, err := semelhttp.ContractNamed(h.Contract)
	if err != nil {
		contract = semelhttp.IETF()
	}
	methods := h.Methods
	if len(methods) == 0 {
		methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, m := range methods {
		switch strings.ToUpper(m) {
		case http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete:
		default:
			wrong("methods", "names %q; POST, PATCH, PUT and DELETE can be protected", m)
		}
	}
	for _, d := range []struct {
		name  string
		value caddy.Duration
	}{{"lease", h.Lease}, {"deadline", h.Deadline}, {"retention", h.Retention}, {"wait", h.Wait}, {"max_wait", h.MaxWait}} {
		if d.value < 0 {
			wrong(d.name, "is negative")
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"max_executions", h.MaxExecutions}, {"max_tenant_executions", h.MaxTenantExecutions}, {"max_waiters", h.MaxWaiters}} {
		if n.value < 0 {
			wrong(n.name, "is negative")
		}
	}
	if h.MaxResult > maxResult {
		wrong("max_result", "is %d; at most %d are possible", h.MaxResult, int64(maxResult))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.policy = semel.Policy{Lease: time.Duration(h.Lease), Deadline: time.Duration(h.Deadline), Retention: time.Duration(h.Retention)}
	h.config = semelhttp.Config{
		Scope: h.scope, Protects: semelhttp.ProtectMethods(methods...), RequireKey: h.Key == "required", StrictKey: h.StrictKeys,
		Contract: contract, InFlight: semelhttp.InFlight(inFlight), Wait: time.Duration(h.Wait), MaxWait: time.Duration(h.MaxWait),
		MaxRequestBody: h.MaxRequestBody, MaxResult: h.MaxResult,
		IndeterminateStatus: indeterminateStatus, Forwards: true,
	}
	return nil
}
