package report

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"
)

func says(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

// wantFile fails the test unless there is a file of its own at the path, with
// this content, that nobody else can read.
func wantFile(t *testing.T, path, content string) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != content {
		t.Errorf("%s holds %q, %v; want %q", filepath.Base(path), b, err, content)
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%s is %v", filepath.Base(path), info.Mode())
	}
}

// Whoever may write to the folder cannot have another file of the user's
// overwritten or read.
func TestFileWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "junit.xml")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{path, path + ".part", path + ".partial", filepath.Join(dir, ".junit.xml.partial")} {
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteFile(path, says("report")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "report")
	wantFile(t, victim, "mine")
	dead := filepath.Join(dir, "dead.xml")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dead); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(dead, says("report")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, dead, "report")
	if _, err := os.Lstat(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a file was made where a link leads")
	}
}

// The old file stays until the new one is whole.
func TestFileIsWholeOrAsItWas(t *testing.T) {
	dir := t.TempDir()
	path, folder := filepath.Join(dir, "junit.xml"), filepath.Join(dir, "folder")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	err := WriteFile(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, strings.Repeat("half", 1<<16)); err != nil {
			return err
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "before" {
			t.Errorf("meanwhile it holds %q, %v", b, err)
		}
		return full
	})
	if b, _ := os.ReadFile(path); !errors.Is(err, full) || string(b) != "before" {
		t.Errorf("%v, and it holds %q", err, b)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{folder, filepath.Join(dir, "link")} {
		if err := WriteFile(at, says("x")); err == nil {
			t.Errorf("%s was replaced", at)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 3 {
		t.Errorf("there is %v, %v", left, err)
	}
	if err := WriteFile(path, says("after")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "after")
}

// However the JSON comes, nothing passes that a terminal might obey, and what it
// says stays the same.
func TestSafeJSON(t *testing.T) {
	const hostile = "k\u009b31m\u0080\u009f\x7f\u202e\u2066\ufeff\U000e0001\x1bä€𝄞\n\""
	doc, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(doc) {
		var out strings.Builder
		w := SafeJSON(&out)
		for _, part := range [][]byte{doc[:cut], doc[cut : cut+1], doc[cut+1:]} {
			if n, err := w.Write(part); err != nil || n != len(part) {
				t.Fatal(n, err)
			}
		}
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("cut at %d: %q", cut, out.String())
		}
		var again string
		if err := json.Unmarshal([]byte(out.String()), &again); err != nil || again != hostile {
			t.Fatalf("cut at %d: %q, %v", cut, again, err)
		}
	}
	var out strings.Builder
	if _, err := SafeJSON(&out).Write([]byte("\"\x9b31m\"")); err != nil || out.String() != "\"\ufffd31m\"" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// The exchanges hold what the target sent, and are safe to look at all the same.
func TestHARWithTerminalEscapes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f := Files{HAR: says("{\"log\":{\"entries\":[{\"request\":{\"method\":\"\u009b31m\"}}]}}\n")}
	if err := Write(dir, raceRun(), f); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, HARFile))
	if err != nil || !strings.Contains(string(b), `"\u009b31m"`) {
		t.Errorf("%q, %v", b, err)
	}
}
