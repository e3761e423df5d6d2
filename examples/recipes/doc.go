// Package recipes shows ways to make an effect safe to repeat that need no key in a
// header: each beside the way that doubles it. They are the examples of its tests,
// which run on a SQLite file.
package recipes
