//go:build !race

package model

import "testing"

// The model runs in one goroutine, where the race detector can find nothing
// and takes ten times as long. Under it the model is a smaller one.
const faults = 2

// TestVariants shows that each of these contracts would do without the
// assumption that an attempt does not even ask for its claim again.
func TestVariants(t *testing.T) {
	for _, v := range []Variant{FreshRepeat, MarkFirst} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			// The policy and the faults under which TestAssumptions needs it.
			holds(t, &Model{Policy: PolicyReconcile, Mutation: ResolveWhileAsking, Variant: v, Faults: 1})
		})
	}
}
