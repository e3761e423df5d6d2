// Package lessons holds the lessons of the lab as they are written, for the program
// that shows them and runs their steps.
package lessons

import "embed"

// Files are the pages in English, and in the folder ja those in Japanese, under the
// same names. README.md is the list of them.
//
//go:embed *.md ja/*.md
var Files embed.FS
