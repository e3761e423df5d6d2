package report

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for at < len(got) && at < len(want) && got[at] == want[at] {
			at++
		}
		from := max(at-60, 0)
		t.Errorf("%s differs at byte %d (run with -update, then read what changed):\n got %q\nwant %q", file, at, got[from:min(at+120, len(got))], want[from:min(at+120, len(want))])
	}
}

// writers are all formats of one run, by the ends of their golden files.
var writers = map[string]func(io.Writer, *evidence.Run) error{
	"txt": func(w io.Writer, r *evidence.Run) error {
		return Terminal(w, r, TerminalOptions{Width: 100, Evidence: "runs/" + "20260921"})
	},
	"colour.txt": func(w io.Writer, r *evidence.Run) error { return Terminal(w, r, TerminalOptions{Colour: true}) },
	"html":       func(w io.Writer, r *evidence.Run) error { return HTML(w, r, extra()) },
	"json":       JSON,
	"record":     Record,
	"junit.xml":  JUnit,
	"sarif":      SARIF,
	"md":         Markdown,
}

func extra() Extra {
	return Extra{
		Plan: "version: 1\nname: orders <b>\n", Evidence: HARFile,
		Exchanges: map[int]Exchange{2: {
			Request:  "POST /orders HTTP/1.1\r\nIdempotency-Key: \"k-1\"\r\n\r\n{\"item\":\"book\",\"quantity\":1}",
			Response: "HTTP/1.1 201 Created\r\n\r\n{\"id\":\"ord_17\",\"note\":\"<script>alert(4)</script>\x1b[31m\"}",
		}},
	}
}

func write(t *testing.T, format string, r *evidence.Run) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := writers[format](&b, r); err != nil {
		t.Fatalf("%s: %v", format, err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for name := range runs() {
		for format := range writers {
			t.Run(name+"."+format, func(t *testing.T) {
				got := write(t, format, runs()[name])
				if again := write(t, format, runs()[name]); !bytes.Equal(got, again) {
					t.Error("the same run gave other bytes")
				}
				golden(t, name+"."+format, got)
			})
		}
	}
}

func TestGoldenDiff(t *testing.T) {
	all := runs()
	for name, pair := range map[string][2]*evidence.Run{
		"clean-race": {all["clean"], all["race"]}, "race-clean": {all["race"], all["clean"]},
		"race-interrupted": {all["race"], all["interrupted"]}, "race-race": {all["race"], all["race"]}, "clean-hostile": {all["clean"], all["hostile"]},
	} {
		d := Compare(pair[0], pair[1])
		for format, write := range map[string]func(io.Writer) error{"txt": d.Text, "md": d.Markdown, "json": d.JSON} {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, "diff-"+name+"."+format, b.Bytes())
		}
	}
}
