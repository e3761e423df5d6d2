// Package matrix has only tests. They check what must hold for a protected HTTP
// operation on every store, in every combination of how the operation responds,
// how it ends, what its client does, what the store does, and which duplicates
// come.
package matrix
