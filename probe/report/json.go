package report

import (
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"

	"github.com/semelhq/semel/probe/evidence"
)

// JSON writes the run itself, indented, in the order of its fields.
func JSON(w io.Writer, r *evidence.Run) error { return writeJSON(w, r) }

// Record writes the records of the run: the least that is worth keeping, as
// evidence.RecordJSONSchema describes it.
func Record(w io.Writer, r *evidence.Run) error { return writeJSON(w, r.Records()) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(SafeJSON(w))
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// SafeJSON returns a writer that makes JSON safe to display and writes it to w:
// characters that do not print, or that change how other text is shown, become
// escapes such as \u009b. UTF-8 JSON decodes to the same values.
func SafeJSON(w io.Writer) io.Writer { return &safeJSON{w: w} }

type safeJSON struct {
	w    io.Writer
	rest []byte // the begin of a character whose end is to come
}

func (s *safeJSON) Write(p []byte) (int, error) {
	in := append(s.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, size := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && size == 1:
			out = utf8.AppendRune(out, r)
		case r < 0x7f || r > 0x7f && unicode.IsPrint(r):
			out = append(out, in[:size]...)
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
		in = in[size:]
	}
	s.rest = append([]byte(nil), in...)
	if _, err := s.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
