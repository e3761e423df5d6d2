// Package report makes what people and tools read out of a run of the probe:
// for terminals, HTML, Markdown, JSON, JUnit, SARIF; the difference of two runs;
// and the folder that holds a run.
//
// Whatever came from a target, and that may be in any text of a run, is shown as
// text: control characters, marks that change the direction of writing, and
// what cannot be printed appear as escapes such as \x1b and \u202e, and long
// texts are cut with a note of how much is missing. In JSON, SARIF and the
// folder's run.json nothing is cut, and such characters are \u escapes.
//
// All writers write the same bytes for the same run.
package report
