package brokenstore

import (
	"context"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// What becomes of the trail of changes.
var telling = []Broken{
	{
		Name:   "trail-behind-the-answer",
		What:   "tells of a change after it was answered: a crash in between leaves no trace of it",
		Breaks: []string{"trail-commits-with-the-record"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				time.AfterFunc(50*time.Millisecond, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					enter(s, e)
				})
			}
		},
	},
	{
		Name:   "trail-tells-twice",
		What:   "tells of an execution again when its answer was asked for again",
		Breaks: []string{"trail-commits-with-the-record"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				_, err := complete(r, res, now)
				return semel.TrailExecuted, err
			}
		},
	},
	{
		Name:   "trail-tells-of-no-takeover",
		What:   "tells of a takeover where the claim was free",
		Breaks: []string{"trail-commits-with-the-record"},
		wrap:   func(s *store) semel.Store { return tellsOfNoTakeover{s} },
	},
	{
		Name:   "trail-without-origin",
		What:   "does not say which request it was",
		Breaks: []string{"trail-commits-with-the-record", "trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				e.Origin = semel.Origin{}
				enter(s, e)
			}
		},
	},
	{
		Name:   "trail-without-cause",
		What:   "does not say why",
		Breaks: []string{"trail-commits-with-the-record", "trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				e.Cause = ""
				enter(s, e)
			}
		},
	},
	{
		Name:   "silent-resolutions",
		What:   "does not say that an operator has settled a record",
		Breaks: []string{"trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				if e.Kind != semel.TrailResolved {
					enter(s, e)
				}
			}
		},
	},
	{
		Name:   "notes-dropped",
		What:   "loses notes when they come fast, and does not count them",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			var last time.Time
			burst := 0
			s.note = func(s *store, e semel.TrailEntry) {
				if e.At.After(last) {
					last, burst = e.At, 0
				}
				if burst++; burst <= 32 {
					s.enter(s, e)
				}
			}
		},
	},
	{
		Name:   "notes-without-count",
		What:   "keeps no count with a note: a hundred replays read as one",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			s.note = func(s *store, e semel.TrailEntry) {
				e.Count = 0
				s.enter(s, e)
			}
		},
	},
	{
		Name:   "notes-out-of-order",
		What:   "writes each batch of notes in the order in which its writers wake up",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			var batch []semel.TrailEntry
			s.note = func(s *store, e semel.TrailEntry) {
				if batch = append(batch, e); len(batch) < 2 {
					return
				}
				for _, e := range slices.Backward(batch) {
					s.enter(s, e)
				}
				batch = nil
			}
		},
	},
	{
		Name:   "trail-deaf-to-traces",
		What:   "answers a question for one trace with every other's entries too",
		Breaks: []string{"trail-filters-and-pages"},
		change: func(s *seams) {
			s.told = func(f semel.TrailFilter, e semel.TrailEntry) bool {
				f.TraceID = ""
				return told(f, e)
			}
		},
	},
}

type tellsOfNoTakeover struct{ *store }

func (s tellsOfNoTakeover) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	_, absent := s.Find(ctx, a.Identity)
	c, err := s.store.Begin(ctx, a)
	if err == nil && absent != nil && a.Takeover != 0 {
		s.Note(semel.TrailEntry{Kind: semel.TrailTakeover, RecordID: c.RecordID(), Key: a.Identity.Key})
	}
	return c, err
}
