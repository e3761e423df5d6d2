// Package matrix has no code but tests: what has to hold of a protected HTTP
// operation, over every store, in every combination of how the operation
// answers, how it ends, what its client does, what the store does and who else
// asks for the same.
package matrix
