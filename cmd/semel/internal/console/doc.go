// Package console is a page for the operators of a gateway: what happens now, what
// is recorded, and the settling of what is unknown. It is made by the server and can
// be read without scripts.
//
// Whoever uses it has given the admin token. It never shows a key, a body, or a
// stored response.
package console
