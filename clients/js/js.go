// Package js holds the clients for browsers, for services that serve them with
// their own pages. It is the npm package @semelhq/once, whose README says how the
// client is used.
package js

import "embed"

// FS has the one file that browsers need, once.js.
//
//go:embed once.js
var FS embed.FS
