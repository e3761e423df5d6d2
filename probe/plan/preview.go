package plan

import "regexp"

var (
	previewName = regexp.MustCompile(`(?i)^(x[-_])?(is[-_]?)?(dry[-_]?run|validat(e|ion)[-_]?only|check[-_]?only|preview([-_]?only)?|simulate|what[-_]?if)$`)
	previewPath = regexp.MustCompile(`(?i)[/:](validate|validation|dry[-_]?run|preview|simulate|simulation)$`)
)

// NamesPreview reports whether a parameter or member of that name usually asks
// for a dry run.
func NamesPreview(name string) bool { return previewName.MatchString(name) }

// PreviewOf returns the path of the operation that a path is a dry run of, such
// as /orders for /orders/validate; ok is false if the path does not look like a
// dry run.
func PreviewOf(path string) (of string, ok bool) {
	of = previewPath.ReplaceAllString(path, "")
	return of, of != path && len(of) > 1
}
