package plan

import "regexp"

var (
	previewName = regexp.MustCompile(`(?i)^(x[-_])?(is[-_]?)?(dry[-_]?run|validat(e|ion)[-_]?only|check[-_]?only|preview([-_]?only)?|simulate|what[-_]?if)$`)
	previewPath = regexp.MustCompile(`(?i)[/:](validate|validation|dry[-_]?run|preview|simulate|simulation)$`)
)

// NamesPreview reports whether a parameter or member of that name asks, as a
// rule, for a dry run.
func NamesPreview(name string) bool { return previewName.MatchString(name) }

// PreviewOf returns the path of the operation that a path is a dry run of, as
// /orders of /orders/validate; ok is false if the path says nothing of the kind.
func PreviewOf(path string) (of string, ok bool) {
	of = previewPath.ReplaceAllString(path, "")
	return of, of != path && len(of) > 1
}
