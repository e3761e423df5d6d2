// Package report writes reports of a run of the probe, for people and tools: for
// terminals, HTML, Markdown, JSON, JUnit and SARIF; the difference between two
// runs; and the folder that holds a run.
//
// Any text of a run may come from a target, so all of it is shown as text:
// control characters, marks that change the direction of writing, and
// unprintable characters appear as escapes such as \x1b and \u202e, and long
// texts are cut with a note of how much is missing. In JSON, SARIF and the
// folder's run.json nothing is cut, and such characters are \u escapes.
//
// All writers write the same bytes for the same run.
package report
