package brokenstore

import (
	"context"

	"github.com/semelhq/semel"
)

type tellsOfNoTakeover struct{ *store }

func (s tellsOfNoTakeover) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	_, absent := s.Find(ctx, a.Identity)
	c, err := s.store.Begin(ctx, a)
	if err == nil && absent != nil && a.Takeover != 0 {
		s.Note(semel.TrailEntry{Kind: semel.TrailTakeover, RecordID: c.RecordID(), Key: a.Identity.Key})
	}
	return c, err
}
