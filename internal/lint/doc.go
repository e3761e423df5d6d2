// Package lint holds the tests that keep the tree itself in order: which
// package may import which, that docs/guarantees.md names tests that exist,
// and that the modules fit together. It has no code to import.
package lint
