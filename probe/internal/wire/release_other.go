//go:build !unix

package wire

import "time"

// releaseRaw cannot do better than the ordinary way here.
func releaseRaw([]*pipe, []time.Time) [][]byte { return nil }
