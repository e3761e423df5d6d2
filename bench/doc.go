// Package bench compares semel with what its users would have without it, side
// by side in one run, and measures stores as they grow. README.md has the
// figures and says how they were taken; docs/sizing.md computes from them what a
// load needs. The folder peers compares with other libraries, in one table.
package bench
