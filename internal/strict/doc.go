// Package strict reads files that people write, YAML or JSON, into Go structs. A
// key that is unknown, is given twice or has the wrong type is a problem with its
// line and column, and all problems are reported together. A file is one document
// without anchors, aliases and tags, so it means exactly what is written and is
// never larger than it looks.
//
// The structs alone define what a file may contain: a field's yaml tag is its
// key, its rule tag constrains the value, and its comment documents it. The JSON
// Schema and the reference of all keys are generated from them.
//
//	required     must be written, and not be empty
//	empty        strings may be empty
//	secret       must not be shown
//	min, max     of a number or of the numbers in a list; max of a string's length in characters
//	items        most elements of a list or mapping
//	enum         the strings allowed, with | between them
//	names        the form of a string, of the strings in a list, or of the names in a mapping
//
// The tag one of a field without a key lists keys of which exactly one is given,
// and any keys of which at least one is. An embedded struct's keys are those of
// the struct that it is in.
package strict
