//go:build race

package main

// The race detector makes what is counted in thousands several times slower.
const raceEnabled = true
