// Package bench compares semel with what its users would have without it, side
// by side in one run. README.md has the figures and says how they were taken.
package bench
