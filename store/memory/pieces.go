package memory

import (
	"context"
	"fmt"

	"github.com/semelhq/semel"
)

// whole returns a result with pieces as one whose body is in memory, where
// everything of this store is.
func whole(ctx context.Context, res semel.Result) (semel.Result, error) {
	if res.Pieces.Size <= 0 || res.Pieces.Read == nil || len(res.Body) > 0 {
		return res, fmt.Errorf("memory: %w: its pieces, %d bytes long, are not a body", semel.ErrTooLarge, res.Pieces.Size)
	}
	var body []byte // no room made for a size that somebody made up
	for n := 0; int64(len(body)) < res.Pieces.Size; n++ {
		piece, err := res.Pieces.ReadPiece(ctx, n)
		switch {
		case ctx.Err() != nil: // which says nothing about the body
			return res, ctx.Err()
		case err != nil:
			return res, fmt.Errorf("memory: %w: %v", semel.ErrTooLarge, err)
		}
		body = append(body, piece...)
	}
	res.Body, res.Pieces = body, nil
	return res, nil
}
