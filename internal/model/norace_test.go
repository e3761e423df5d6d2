//go:build !race

package model

// The model runs in one goroutine, where the race detector can find nothing
// and takes ten times as long. Under it the model is a smaller one.
const faults = 2
