package plan

import (
	"slices"

	"github.com/semelhq/semel/internal/strict"
)

// Problem is one thing that is wrong with a plan. Its text never quotes a value
// that could be a secret.
type Problem = strict.Problem

// Problems returns the problems in an error of this package, in the order of
// their lines.
func Problems(err error) []*Problem { return strict.Problems(err) }

// OnlyToFill reports whether err is only about what an import left for the
// author to fill in.
func OnlyToFill(err error) bool {
	list := Problems(err)
	return len(list) > 0 && !slices.ContainsFunc(list, func(p *Problem) bool { return !p.ToFill })
}

// problems collects what is wrong.
type problems = strict.Findings
