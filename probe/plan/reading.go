package plan

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/semelhq/semel/probe/internal/wire"
)

// Reading is a reader with all its templates rendered.
type Reading struct {
	Reader  *Reader
	Request wire.Request   // http: what to send
	Where   Pairs          // http: what elements have to have
	Number  *regexp.Regexp // http: number
	DSN     string         // sql
	Args    []string       // sql: for Reader.SQL.Query
	File    string         // log: as this process sees it
	Argv    []string       // command
	// Pattern of a log, command, webhook or smtp reader, or the lines of http.
	// Nil: everything counts, or the output is the number.
	Pattern *regexp.Regexp
}

// Reading renders a reader of the values' operation. resourceID is the id that
// the first response gave the resource, or empty. The error is [ErrNoResource]
// if it is empty and needed.
func (r *Renderer) Reading(v *Values, rd *Reader, resourceID string) (*Reading, error) {
	out, err := r.reading(v, rd, resourceID)
	if err != nil {
		return nil, fmt.Errorf("plan: reader %s: %w", rd.Name, err)
	}
	return out, nil
}

func (r *Renderer) reading(v *Values, rd *Reader, resourceID string) (out *Reading, err error) {
	out = &Reading{Reader: rd}
	pr, err := r.principal(ActorA)
	if err != nil {
		return nil, err
	}
	sc := r.scope(v, pr, resourceID)
	path := "readers." + rd.Name
	pattern := ""
	switch {
	case rd.HTTP != nil:
		q := Request{Method: "GET", URL: rd.HTTP.URL, Headers: rd.HTTP.Headers, Body: rd.HTTP.Post}
		if q.Body != nil {
			q.Method = "POST"
		}
		if out.Request, pr, err = r.reads(v, q, rd.HTTP.As, resourceID); err != nil {
			return nil, err
		}
		sc = r.scope(v, pr, resourceID)
		if pattern = rd.HTTP.Lines; rd.HTTP.Number != "" {
			if out.Number, err = r.pattern(sc, rd.HTTP.Number, path); err != nil {
				return nil, err
			}
		}
		for _, m := range rd.HTTP.Where {
			t, err := r.render(sc, path+".where", m.Value, MaxValueBytes)
			if err != nil {
				return nil, err
			}
			out.Where = append(out.Where, Pair{m.Name, t.s})
		}
	case rd.SQL != nil:
		dsn, err := r.render(sc, path+".dsn", rd.SQL.DSN, MaxValueBytes)
		if err != nil {
			return nil, err
		}
		out.DSN = dsn.s
		if out.Args, err = r.list(sc, rd.SQL.Args, path); err != nil {
			return nil, err
		}
	case rd.Log != nil:
		out.File, pattern = r.Path(rd.Log.File), rd.Log.Pattern
	case rd.Command != nil:
		if out.Argv, err = r.list(sc.in(inArgument), rd.Command.Argv, path); err != nil {
			return nil, err
		}
		pattern = rd.Command.Pattern
	case rd.Webhook != nil:
		pattern = rd.Webhook.Match
	case rd.SMTP != nil:
		pattern = rd.SMTP.Match
	}
	if pattern != "" {
		if out.Pattern, err = r.pattern(sc, pattern, path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// reads renders a request that only reads, of one of the principals.
func (r *Renderer) reads(v *Values, q Request, as PrincipalName, resourceID string) (wire.Request, *Principal, error) {
	pr, err := r.principal(as)
	if err != nil {
		return wire.Request{}, nil, err
	}
	req, err := r.base(r.scope(v, pr, resourceID), &q, pr, "read")
	if err == nil {
		err = req.Validate()
	}
	return req, pr, err
}

func (r *Renderer) list(sc scope, list []string, path string) (out []string, err error) {
	for _, e := range list {
		t, err := r.render(sc, path, e, MaxValueBytes)
		if err != nil {
			return nil, err
		}
		out = append(out, t.s)
	}
	return out, nil
}

// pattern renders a regular expression; values in it match themselves.
func (r *Renderer) pattern(sc scope, s, path string) (*regexp.Regexp, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return nil, err
	}
	out, err := t.render(sc, path, regexp.QuoteMeta)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(out.s)
	if err != nil {
		return nil, errors.New("it is not a regular expression") // the error would quote it
	}
	return re, nil
}

// Search is an audit with all its templates rendered.
type Search struct {
	Audit   *Audit
	Request wire.Request // http: what to send
	File    string       // log: as this process sees it
	Argv    []string     // command
	Find    []Find
}

// Find is a pattern to look for in a line, and its name.
type Find struct {
	Name    string
	Pattern *regexp.Regexp
}

// Search renders an audit of the values' operation, as Reading does a reader.
func (r *Renderer) Search(v *Values, a *Audit, resourceID string) (*Search, error) {
	out, err := r.search(v, a, resourceID)
	if err != nil {
		return nil, fmt.Errorf("plan: audit %s: %w", a.Name, err)
	}
	return out, nil
}

func (r *Renderer) search(v *Values, a *Audit, resourceID string) (out *Search, err error) {
	out = &Search{Audit: a, File: r.Path(a.Log)}
	var pr *Principal
	if a.HTTP != nil {
		if out.Request, pr, err = r.reads(v, Request{Method: "GET", URL: a.HTTP.URL, Headers: a.HTTP.Headers}, a.HTTP.As, resourceID); err != nil {
			return nil, err
		}
	} else if pr, err = r.principal(ActorA); err != nil {
		return nil, err
	}
	sc := r.scope(v, pr, resourceID)
	if out.Argv, err = r.list(sc.in(inArgument), a.Command, "audit"); err != nil {
		return nil, err
	}
	for _, m := range a.Find {
		re, err := r.pattern(sc, m.Value, "audit")
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", m.Name, err)
		}
		out.Find = append(out.Find, Find{m.Name, re})
	}
	return out, nil
}

// Resetting is a reset hook with all its templates rendered: a request, or a
// program and its arguments.
type Resetting struct {
	Request wire.Request
	Argv    []string
}

// Reset renders the reset hook; nil if the plan has none.
func (r *Renderer) Reset() (*Resetting, error) {
	h := r.plan.Reset
	if h == nil {
		return nil, nil
	}
	out, err := r.reset(h)
	if err != nil {
		return nil, fmt.Errorf("plan: reset: %w", err)
	}
	return out, nil
}

func (r *Renderer) reset(h *Hook) (out *Resetting, err error) {
	out = &Resetting{}
	if h.HTTP == nil {
		pr, err := r.principal(ActorA)
		if err != nil {
			return nil, err
		}
		out.Argv, err = r.list(r.scope(nil, pr, "").in(inArgument), h.Command, "reset")
		return out, err
	}
	pr, err := r.principal(h.HTTP.As)
	if err != nil {
		return nil, err
	}
	if out.Request, err = r.base(r.scope(nil, pr, ""), &h.HTTP.Request, pr, "reset"); err != nil {
		return nil, err
	}
	return out, out.Request.Validate()
}
