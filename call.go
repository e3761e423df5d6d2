package semel

import (
	"context"
	"encoding/json"
	"fmt"
)

const codecJSON = "json/1"

// Call is Do for Go values: fn's value is recorded as JSON and replays return
// it decoded. In the submit that executed, the value is fn's own. A replayed
// value went through JSON and back, so unexported fields are lost; use types
// that survive it.
//
// If the value cannot be encoded, or is larger than the store takes, the effect
// has nonetheless happened: the record becomes a tombstone, and later submits are
// answered with ErrResultNotRetained. The submit that executed has its value all
// the same; where that cannot be encoded ErrResultNotRetained comes with it, since
// no retry will ever be told more.
func Call[T any](ctx context.Context, g *Guard, s Submit, fn func(ctx context.Context) (T, error)) (T, Answer, error) {
	var fresh, zero T
	var encoded error
	out, err := g.Do(ctx, s, func(ctx context.Context) (Result, error) {
		v, err := fn(ctx)
		if err != nil {
			return Result{}, err
		}
		fresh = v
		res, err := JSONResult(v)
		encoded = err // the effect has happened all the same
		return res, nil
	})
	switch {
	case err != nil:
		return zero, out.Answer, err
	case out.Answer == AnswerExecuted:
		return fresh, out.Answer, encoded
	case out.Result.Tombstone:
		return zero, out.Answer, ErrResultNotRetained
	case out.Result.Codec != codecJSON:
		return zero, out.Answer, fmt.Errorf("semel: the recorded result is of codec %q, not a value of Call", out.Result.Codec)
	}
	var v T
	if err := json.Unmarshal(out.Result.Body, &v); err != nil {
		return zero, out.Answer, fmt.Errorf("semel: the recorded result does not fit %T: %w", v, err)
	}
	return v, out.Answer, nil
}

// JSONResult is the result that Call records of v. If v cannot be encoded it is a
// tombstone, and the error is ErrResultNotRetained.
func JSONResult(v any) (Result, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return Result{Codec: codecJSON, Tombstone: true, Label: "tombstone"}, fmt.Errorf("%w: %w", ErrResultNotRetained, err)
	}
	return Result{Codec: codecJSON, Body: body, Label: "ok"}, nil
}
