package semel

import (
	"context"
	"encoding/json"
	"fmt"
)

const codecJSON = "json/1"

// Call is Guard.Do for functions that return a Go value. The value is recorded as
// JSON. The submit that executes returns the value of fn itself; a replay returns
// it decoded, without its unexported fields.
//
// If the value cannot be encoded, or is larger than the store accepts, the effect
// has happened even so: the record becomes a tombstone, and later submits return
// ErrResultNotRetained. The submit that executes still returns the value, together
// with ErrResultNotRetained if the value cannot be encoded.
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

// JSONResult returns the result that Call records for v. If v cannot be encoded, the
// result is a tombstone and the error is ErrResultNotRetained.
func JSONResult(v any) (Result, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return Result{Codec: codecJSON, Tombstone: true, Label: "tombstone"}, fmt.Errorf("%w: %w", ErrResultNotRetained, err)
	}
	return Result{Codec: codecJSON, Body: body, Label: "ok"}, nil
}
