package report

import (
	"io"

	"github.com/semelhq/semel/probe/evidence"
)

// JSON writes the run itself, indented, in the order of its fields.
func JSON(w io.Writer, r *evidence.Run) error { return writeJSON(w, r) }
