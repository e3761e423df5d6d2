package brokenstore

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// What people are told.
var listing = []Broken{
	{
		Name:   "list-with-results",
		What:   "hands out stored answers to whoever may list records",
		Breaks: []string{"list-filters-and-pages"},
		wrap:   func(s *store) semel.Store { return listWithResults{s} },
	},
	{
		Name:   "list-with-the-expired",
		What:   "lists records that no longer exist",
		Breaks: []string{"list-filters-and-pages"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if r.State == semel.StateCompleted {
					r.ExpiresAt = now.Add(time.Hour)
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-by-key",
		What:   "orders by key but pages by fence, so pages miss records",
		Breaks: []string{"list-filters-and-pages"},
		wrap:   func(s *store) semel.Store { return listByKey{s} },
	},
	{
		Name:   "list-without-leases",
		What:   "takes records of living owners for lapsed ones",
		Breaks: []string{"list-filters-and-pages"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if f.Lapsed {
					f.Lapsed, f.State = false, semel.StateInProgress
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-with-patterns",
		What:   "takes a cause for a pattern of its query language",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				cause := f.Cause
				f.Cause = ""
				return listed(s, f, r, now) && (cause == "" || r.State == semel.StateUnknown && like(cause, r.Cause))
			}
		},
	},
	{
		Name:   "list-deaf-to-causes",
		What:   "answers a question for one cause with every record",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				f.Cause = ""
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-begun-until-inclusive",
		What:   "counts a record at the edge of a time range in, so that it is in two ranges that meet",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if r.BegunAt.Equal(f.BegunUntil) {
					f.BegunUntil = time.Time{}
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-by-the-first-claim",
		What:   "keeps the time of the first claim for that of the latest",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			first := make(map[string]time.Time)
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if at, ok := first[r.ID]; ok {
					r.BegunAt = at
				}
				first[r.ID] = r.BegunAt
				return listed(s, f, r, now)
			}
		},
	},
}

// like matches as SQL's LIKE does, with * for %.
func like(pattern, s string) bool {
	var re strings.Builder
	for _, c := range pattern {
		switch c {
		case '*', '%':
			re.WriteString(".*")
		case '_':
			re.WriteString(".")
		default:
			re.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile("(?is)^" + re.String() + "$").MatchString(s)
}

type listWithResults struct{ *store }

func (s listWithResults) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	out, err := s.store.List(ctx, f)
	for i, r := range out {
		if full, err := s.Find(ctx, r.Identity); err == nil {
			out[i].Result = full.Result
		}
	}
	return out, err
}

type listByKey struct{ *store }

func (s listByKey) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	out, err := s.store.List(ctx, f)
	slices.SortFunc(out, func(a, b semel.Record) int { return strings.Compare(a.Identity.Key, b.Identity.Key) })
	return out, err
}
