// Package strict reads files that people write, YAML or JSON, into Go structs,
// and takes nothing for what it is not: a key that is not known, given twice or of
// another type is a problem with its line and column, and all problems come
// together. There is one document, without anchors, aliases and tags, so that a
// text means what is written, once, and is never larger than it looks.
//
// What a file may hold is said by the structs alone: a field's yaml tag is its
// key, its rule tag what the value must be, its comment what it means. The JSON
// Schema and the reference of all keys are made of the same.
//
//	required     must be written, and not be empty
//	empty        strings may be empty
//	secret       is not to be shown
//	min, max     of a number or of the numbers in a list; max of a string's length in characters
//	items        most elements of a list or mapping
//	enum         the strings allowed, with | between them
//	names        the form of a string, of the strings in a list, or of the names in a mapping
//
// The tag one of a field without a key lists keys of which exactly one is given,
// and any keys of which at least one is. An embedded struct's keys are those of
// the struct that it is in.
package strict
