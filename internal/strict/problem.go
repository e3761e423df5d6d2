package strict

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a file. Its text never quotes a value
// that could be a secret.
type Problem struct {
	File      string // as it was named; empty for what was made in Go
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

// Problems returns the problems in an error, in the order of their lines.
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

// Source is where something was read from.
type Source struct {
	File string
	at   map[string]Place // by path
}

// Place is where a value is written, from 1.
type Place struct {
	Line, Col int
	// Env names the environment variables that the value was made of, with "(not
	// set)" behind one whose default it is.
	Env []string
}

// NewSource returns a source in which nothing is written yet.
func NewSource(file string) *Source {
	return &Source{File: file, at: map[string]Place{"": {Line: 1, Col: 1}}}
}

// Find returns the place of a path, or of the nearest thing around it that was
// written.
func (s *Source) Find(path string) Place {
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

// Written returns the place of a path, and whether it is written.
func (s *Source) Written(path string) (Place, bool) {
	at, ok := s.at[path]
	return at, ok
}

// Findings collects what is wrong.
type Findings struct {
	Source *Source // nil for what was made in Go
	List   []*Problem
}

// Add adds a problem. What is behind a # in path tells places of one path apart
// and is not told.
func (f *Findings) Add(path, format string, args ...any) *Problem {
	p := &Problem{Path: siteNumber.ReplaceAllString(path, ""), Message: fmt.Sprintf(format, args...)}
	if f.Source != nil {
		p.File = f.Source.File
		at := f.Source.Find(path)
		p.Line, p.Col = at.Line, at.Col
	}
	f.List = append(f.List, p)
	return p
}

var siteNumber = regexp.MustCompile(`#\d+$`)

// Err joins what was found, in the order of the lines.
func (f *Findings) Err() error {
	slices.SortStableFunc(f.List, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	errs := make([]error, len(f.List))
	for i, p := range f.List {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// Forget drops the problems from number from on that are about something which an
// earlier one is about, or about what is around or in it.
func (f *Findings) Forget(from int) {
	unread := f.List[:from]
	kept := slices.Clone(unread)
	for _, found := range f.List[from:] {
		if !slices.ContainsFunc(unread, func(u *Problem) bool { return Within(found.Path, u.Path) || Within(u.Path, found.Path) }) {
			kept = append(kept, found)
		}
	}
	f.List = kept
}

// Within reports whether path is inner or around it.
func Within(inner, path string) bool {
	rest, ok := strings.CutPrefix(inner, path)
	return ok && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
}

// Join appends a member to a path.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Index appends an element to a path.
func Index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// DidYouMean suggests what may have been meant.
func DidYouMean(s string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(s, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is how many letters apart two names are (Levenshtein), for short ones.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
