package semelhttp

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/semelhq/semel"
)

// New returns a middleware that protects handlers. The error names everything that is
// wrong with c. The middleware panics if the handler is nil.
func New(c Config) (func(http.Handler) http.Handler, error) {
	c = c.withDefaults()
	fingerprinter, err := NewFingerprinter(c.Fingerprint)
	if err := errors.Join(c.validate(), err); err != nil {
		return nil, fmt.Errorf("semelhttp: config: %w", err)
	}
	if c.Spools == nil {
		if c.Spools, err = NewSpools(SpoolsConfig{}); err != nil {
			return nil, err
		}
	}
	if c.Resources != nil {
		c.Resources.add(c)
	}
	bodies := &uploads{}
	drainWith(c.Guard, bodies)
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("semelhttp: nil handler")
		}
		p := &protector{Config: c, fingerprinter: fingerprinter, next: next, uploads: bodies, spare: &spare{}, large: make(chan struct{}, 1)}
		if c.DryRun {
			return newDryRunner(p)
		}
		return p
	}, nil
}

// drainWith has the bodies that are being read cut off when the guard drains. The
// guard does not hold on to them: it can outlive the middleware, where a server is
// configured anew while it runs.
func drainWith(g *semel.Guard, bodies *uploads) {
	held := weak.Make(bodies)
	stop := g.OnDrain(func() {
		if u := held.Value(); u != nil {
			u.drain()
		}
	})
	runtime.AddCleanup(bodies, func(stop func() bool) { stop() }, stop)
}

// protector is a protected handler.
type protector struct {
	Config
	fingerprinter *Fingerprinter
	next          http.Handler
	uploads       *uploads
	spare         *spare
	large         chan struct{} // full while KeyOf has a large body in memory
}

// spare is what requests use one after the other. It is by itself because the
// runtime holds a sync.Pool, and what that is a part of, for a while.
type spare struct {
	buffers   sync.Pool // of *[]byte, for request bodies
	exchanges sync.Pool // of *exchange whose handler has not been called
}

func (p *protector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if passes(r) {
		p.next.ServeHTTP(w, r)
		return
	}
	if !p.Protects(r) {
		if p.Contract.RefuseUnprotected && len(r.Header[p.Contract.KeyHeader]) > 0 {
			p.refuse(w, r, ProblemNotProtected.Problem())
			return
		}
		p.next.ServeHTTP(w, r)
		return
	}
	var key string
	var problem Problem
	if p.KeyOf == nil {
		key, problem = p.key(r)
		switch {
		case problem.Status != 0:
			p.refuse(w, r, problem)
			return
		case key == "":
			p.next.ServeHTTP(w, r)
			return
		}
	}
	scope, err := p.Scope(r)
	if err != nil {
		p.refuse(w, r, scopeProblem(w, err, refusedBeforeLookUp))
		return
	}
	named := scope.Operation != "" || p.OperationOf == nil
	if scope.Operation == "" {
		scope.Operation = defaultOperation(r)
	}
	expired, ok := false, true
	if named {
		if expired, ok = p.verifyIssued(w, r, key, scope); !ok {
			return
		}
	}
	e := p.newExchange(w, r)
	e.expired = expired
	e.submit.Identity = semel.Identity{Scope: scope, Key: key}
	e.submit.Origin = p.Origin(r)
	problem = e.read()
	if problem.Status == 0 && p.Contract.FirstSentHeader != "" {
		// Once more, for the body may have taken longer than the record was
		// kept for.
		problem = p.firstSent(r.Header[p.Contract.FirstSentHeader])
	}
	if problem.Status == 0 && p.KeyRules.MaxUUIDAge > 0 && p.KeyOf == nil && errors.Is(p.KeyRules.Check(key), semel.ErrKeyAge) {
		problem = keyAge()
	}
	if problem.Status == 0 && (p.KeyOf != nil || !named) {
		problem = e.ask(!named)
	}
	if problem.Status != 0 {
		e.release()
		p.refuse(w, r, problem)
		return
	}
	if !e.expired { // likewise
		if e.expired, ok = p.verifyIssued(w, r, key, e.submit.Identity.Scope); !ok {
			e.release()
			return
		}
	}
	if len(w.Header()) > 0 {
		e.rec.outer = w.Header().Clone()
	}
	e.prefer()
	e.serve()
}

// refuse answers with a problem before the guard is asked.
func (p *protector) refuse(w http.ResponseWriter, r *http.Request, problem Problem) {
	if p.Refused != nil {
		p.Refused(r.Context(), problem)
	}
	p.Contract.WriteProblem(w, problem)
}

// key returns the request's key; neither key nor problem if it has none and
// needs none.
func (p *protector) key(r *http.Request) (string, Problem) {
	c := &p.Contract
	lines := r.Header[c.KeyHeader]
	key, err := ParseKey(lines, p.StrictKey)
	if c.FirstSentHeader != "" {
		first := r.Header[c.FirstSentHeader]
		if len(lines) == 0 && len(first) > 0 {
			problem := ProblemKeyMissing.Problem()
			problem.Detail = fmt.Sprintf("The request has a %s header but no %s header. Nothing was executed.", c.FirstSentHeader, c.KeyHeader)
			return "", problem
		}
		if err == nil {
			if problem := p.firstSent(first); problem.Status != 0 {
				return "", problem
			}
		}
	}
	switch {
	case errors.Is(err, ErrKeyMissing) && !p.RequireKey:
		return "", Problem{}
	case errors.Is(err, ErrKeyMissing):
		problem := ProblemKeyMissing.Problem()
		problem.Detail = p.inContract(problem.Detail)
		return "", problem
	case err == nil:
		err = p.KeyRules.Check(key)
	}
	if errors.Is(err, semel.ErrKeyAge) {
		return "", keyAge()
	}
	if err != nil {
		problem := ProblemKeyMalformed.Problem()
		reasons := strings.ReplaceAll(err.Error(), "\n", "; ") // it never holds the key
		problem.Detail = p.inContract(strings.ToUpper(reasons[:1]) + reasons[1:] + ". Nothing was executed.")
		return "", problem
	}
	if c.FirstSentHeader != "" && len(key) == 36 {
		// Whoever makes ids of its own sends them as it likes, but UUIDs are
		// to be compared without regard to case.
		key = strings.ToLower(key)
	}
	if c.ClientIDHeader != "" {
		switch ids := r.Header[c.ClientIDHeader]; {
		case len(ids) == 1 && ids[0] != "":
			key, _ = semel.EventKey(ids[0], key) // neither is empty
		case len(ids) > 0:
			problem := ProblemKeyMalformed.Problem()
			problem.Detail = fmt.Sprintf("The %s header is empty or there is more than one. Nothing was executed.", c.ClientIDHeader)
			return "", problem
		}
	}
	return key, Problem{}
}

// keyAge is the answer to semel.ErrKeyAge. It must not invite another key.
func keyAge() Problem {
	p := ProblemKeyExpired.Problem()
	p.Detail = "By the time in it, this key was made too long ago, or in the future, so there may have been a record of its use that is gone. Nothing was executed now. If it may have been used before, find out what came of that before you make another key."
	return p
}

// inContract names the key header as the contract does.
func (p *protector) inContract(s string) string {
	return strings.ReplaceAll(s, HeaderKey, p.Contract.KeyHeader)
}

// firstSent checks the lines of the contract's FirstSentHeader.
func (p *protector) firstSent(lines []string) Problem {
	if len(lines) != 1 {
		return ProblemFirstSentInvalid.Problem()
	}
	at, err := time.Parse(http.TimeFormat, lines[0])
	if err != nil {
		return ProblemFirstSentInvalid.Problem()
	}
	// A client whose clock is ahead makes its requests look younger than they
	// are, and the record expires by the store's clock.
	if age := time.Since(at); age >= p.Guard.Policy().Retention-MaxAhead-p.Contract.Skew || age < -MaxAhead {
		return ProblemFirstSentOutOfRange.Problem()
	}
	return Problem{}
}

// verifyIssued checks the key against the issuer, if there is one. An expired
// key may still lead to the result of an earlier use.
func (p *protector) verifyIssued(w http.ResponseWriter, r *http.Request, key string, scope semel.Scope) (expired, ok bool) {
	if p.Resources == nil || p.Resources.config.Keys == nil || !p.IssuedOnly && !strings.HasPrefix(key, issuedPrefix) {
		return false, true
	}
	switch err := p.Resources.config.Keys.Verify(key, scope); {
	case err == nil:
		return false, true
	case errors.Is(err, ErrKeyExpired):
		return true, true
	}
	p.refuse(w, r, ProblemKeyNotIssued.Problem())
	return false, false
}
