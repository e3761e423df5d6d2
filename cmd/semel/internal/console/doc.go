// Package console is a page for the operators of a gateway: it shows what happens now
// and what is recorded, and settles unknown outcomes. The server renders it, and it
// can be read without scripts.
//
// It requires the admin token. It never shows a key, a body, or a
// stored response.
package console
