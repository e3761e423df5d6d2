package conditional

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/semelhttp"
)

// State is the state of a resource before a change.
type State struct {
	// Version is 1 when the resource is created, and every change, including a
	// deletion, increments it. Versions are never reused, even if the resource is
	// deleted and created again, because a deletion leaves the row with its version.
	// 0 means that the resource never existed.
	Version int64
	// Gone reports whether the resource has been deleted, so that only its version
	// is left.
	Gone bool
	// Modified is when the resource was last changed, for Config.Dates. HTTP dates
	// have no fractions of a second.
	Modified time.Time
}

// exists reports whether there is something to be represented.
func (s State) exists() bool { return s.Version != 0 && !s.Gone }

// precondition is what a request wants to be so before it takes effect.
type precondition struct {
	match, noneMatch tags
	unmodifiedSince  time.Time // zero if it was not sent, or does not count
	acceptWeak       bool
	contract         *semelhttp.Contract

	applied atomic.Bool
}

type preconditionKey struct{}

// of returns the precondition that ctx carries, or an empty one.
func of(ctx context.Context) *precondition {
	if p, ok := ctx.Value(preconditionKey{}).(*precondition); ok {
		return p
	}
	return &precondition{}
}

func (p *precondition) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, preconditionKey{}, p)
}

// Without returns a context without a precondition, for changes to resources
// other than the request's target.
func Without(ctx context.Context) context.Context { return (&precondition{}).in(ctx) }

// Expect returns a context with the precondition that the resource has this
// version. It is for versions that are not in If-Match but, for example, in a
// form field or a message. It replaces the request's precondition.
func Expect(ctx context.Context, version int64) context.Context {
	p := &precondition{match: tags{sent: true, list: []Tag{VersionTag(version)}}, contract: of(ctx).contract}
	return p.in(ctx)
}

// Applied declares that the handler has applied the request's precondition
// itself, in the same step as its effect: it forwarded the precondition to the
// owner of the resource, or had nothing to change, or responds from a record of
// its own. Apply and Table.Apply call it themselves.
func Applied(ctx context.Context) { of(ctx).applied.Store(true) }

// empty reports whether there is nothing to be evaluated.
func (p *precondition) empty() bool {
	return !p.match.sent && !p.noneMatch.sent && p.unmodifiedSince.IsZero()
}

// protects reports whether an update under p cannot go unnoticed over somebody
// else's by mistake. A list in If-None-Match does not see to that.
func (p *precondition) protects() bool {
	return p.match.sent || p.noneMatch.any || !p.unmodifiedSince.IsZero()
}

// check evaluates p for a request that changes the resource, in the order of RFC
// 9110 13.2.2. It returns a *FailedError if p does not hold. What changes the
// state changes all of its variants, so of a tag it is the version that counts.
func (p *precondition) check(s State) error {
	at := func(tag Tag) bool {
		v, ok := tag.Version()
		return ok && v == s.Version
	}
	strong := func(tag Tag) bool { return at(tag) && (!tag.Weak || p.acceptWeak) }
	switch {
	case p.match.sent:
		if !s.exists() || !p.match.any && !p.match.has(strong) {
			return &FailedError{Field: headerMatch, Current: s, Weak: s.exists() && p.match.has(at)}
		}
	case p.unmodifiedSince.IsZero() || s.Version == 0: // what never was has no date
	case s.Modified.IsZero() && s.exists():
		return errors.New("conditional: the request depends on a date, as Config.Dates has it, but there is none")
	case s.Modified.IsZero() || s.Modified.Truncate(time.Second).After(p.unmodifiedSince):
		return &FailedError{Field: headerUnmodified, Current: s}
	}
	if s.exists() && (p.noneMatch.any || p.noneMatch.has(at)) {
		return &FailedError{Field: headerNoneMatch, Current: s}
	}
	return nil
}

// checkRead evaluates what a GET or HEAD asks for against the header of its
// answer: it is the only place that knows which representation was selected. It
// returns the status to answer with, or 0 for the answer as it is.
func checkRead(r *http.Request, h http.Header) int {
	tag, err := ParseTag(h.Get("Etag"))
	tagged := err == nil
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	dated := err == nil

	// The dates count only where there is no field with tags, be it malformed.
	if lines := r.Header[headerMatch]; len(lines) > 0 {
		if match, err := parseTags(lines); err == nil && !match.any && !(tagged && match.has(tag.Same)) {
			return http.StatusPreconditionFailed
		}
	} else if since, ok := date(r.Header, headerUnmodified); ok && dated && modified.After(since) {
		return http.StatusPreconditionFailed
	}
	if lines := r.Header[headerNoneMatch]; len(lines) > 0 {
		if none, err := parseTags(lines); err == nil && (none.any || tagged && none.has(tag.Equivalent)) {
			return http.StatusNotModified
		}
	} else if since, ok := date(r.Header, headerModified); ok && dated && !modified.After(since) {
		return http.StatusNotModified
	}
	return 0
}

// date returns a date from a header; false if there is none, or not one.
func date(h http.Header, name string) (time.Time, bool) {
	lines := h[name]
	if len(lines) != 1 {
		return time.Time{}, false
	}
	at, err := http.ParseTime(lines[0])
	return at, err == nil
}

// The fields, as net/http spells them.
const (
	headerMatch      = "If-Match"
	headerNoneMatch  = "If-None-Match"
	headerUnmodified = "If-Unmodified-Since"
	headerModified   = "If-Modified-Since"
)

// RequestHeaders returns the names of the request headers with preconditions. Put
// them into semelhttp.FingerprintConfig.Headers, because the same change to
// another version is a different request and needs a different key.
func RequestHeaders() []string {
	return []string{headerMatch, headerNoneMatch, headerUnmodified}
}
