package plan

import (
	"slices"

	"github.com/semelhq/semel/internal/strict"
)

// Where returns the file of the plan, as it was given to Parse, and the line at
// which an operation begins, from 1. They are zero for a plan that was made in
// Go, and for an operation that it does not have.
func (p *Plan) Where(operation string) (file string, line int) {
	i := slices.IndexFunc(p.Operations, func(op Operation) bool { return op.Name == operation })
	if p.source == nil || p.source.File == "" || i < 0 {
		return "", 0
	}
	return p.source.File, max(p.source.Find(strict.Index("operations", i)).Line, 1)
}

// ReadsFor returns the default of Budget.MaxReads for that many sends: enough to
// read the state before and after each of them until it is stable.
func (p *Plan) ReadsFor(maxSends int) int {
	readers := 1
	for _, op := range p.Operations {
		n := 0
		for _, r := range op.Readers {
			if r.HTTP != nil {
				n++
			}
		}
		if op.Poll != nil && op.Poll.URL != "" {
			n++
		}
		readers = max(readers, n)
	}
	return min(readsForSend*readers*maxSends, 1_000_000)
}

// readsForSend is how many readings one request may take: two before it and
// three after it are usual, and twice as many where an effect is late.
const readsForSend = 10

// Fresh returns the values that were drawn for the request, as by uuid or hex:
// with other values in their place it is another request. Counters and times
// are not among them. They are sorted, each once.
func (v *Values) Fresh() []string {
	var all []string
	for _, s := range v.fresh {
		if isDrawn(s) {
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// isDrawn reports whether a value is of digits, or hexadecimal, and long enough not
// to be found in other texts by chance.
func isDrawn(s string) bool {
	if len(s) < 6 {
		return false
	}
	for _, r := range s {
		if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r == '-') {
			return false
		}
	}
	return true
}
