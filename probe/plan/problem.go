package plan

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a plan. Its text never quotes a value
// that could be a secret.
type Problem struct {
	File      string // as given to Parse; empty for a plan made in Go
	Line, Col int    // from 1; 0 if the place is not known
	Path      string // such as operations[0].request.url
	Message   string
	// ToFill: nothing is wrong but a {{fill}} that an import left.
	ToFill bool
}

func (p *Problem) Error() string {
	var b strings.Builder
	switch {
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Col)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems returns the problems in an error of this package, in the order of
// their lines.
func Problems(err error) []*Problem {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var list []*Problem
		for _, e := range j.Unwrap() {
			list = append(list, Problems(e)...)
		}
		return list
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return []*Problem{p}
	}
	return nil
}

// OnlyToFill says whether err is about nothing but what an import left for the
// author to fill in.
func OnlyToFill(err error) bool {
	list := Problems(err)
	return len(list) > 0 && !slices.ContainsFunc(list, func(p *Problem) bool { return !p.ToFill })
}

// source is where a plan was read from.
type source struct {
	file string
	at   map[string]place // by path
}

type place struct{ line, col int }

// problems collects what is wrong.
type problems struct {
	source *source // nil for a plan made in Go
	list   []*Problem
}

func (ps *problems) add(path, format string, args ...any) {
	p := &Problem{Path: siteNumber.ReplaceAllString(path, ""), Message: fmt.Sprintf(format, args...)}
	if ps.source != nil {
		p.File = ps.source.file
		at := ps.source.find(path)
		p.Line, p.Col = at.line, at.col
	}
	ps.list = append(ps.list, p)
}

// siteNumber is what tells sites of one path apart.
var siteNumber = regexp.MustCompile(`#\d+$`)

func (ps *problems) fill(path, what string) {
	ps.add(path, "to fill in: %s", what)
	ps.list[len(ps.list)-1].ToFill = true
}

// err joins what was found.
func (ps *problems) err() error {
	slices.SortStableFunc(ps.list, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	errs := make([]error, len(ps.list))
	for i, p := range ps.list {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// find returns the place of a path, or of the nearest thing around it that was
// written.
func (s *source) find(path string) place {
	for {
		if at, ok := s.at[path]; ok {
			return at
		}
		i := strings.LastIndexAny(path, ".[#")
		if i < 0 {
			return s.at[""]
		}
		path = path[:i]
	}
}

// join appends a member to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
