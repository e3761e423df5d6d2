//go:build !race

package semelhttp_test

const raceEnabled = false
