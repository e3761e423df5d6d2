// Package tutorial runs docs/tutorial.md in a test.
package tutorial
