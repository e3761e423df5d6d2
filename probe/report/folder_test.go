package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/internal/har"
	"github.com/semelhq/semel/probe/internal/wire"
)

func files() Files {
	x := wire.Exchange{
		Request:  wire.Request{Method: "POST", URL: "http://127.0.0.1:8080/orders", Header: []wire.Field{{Name: "Idempotency-Key", Value: `"k-1"`}}, Body: []byte(`{"item":"book"}`)},
		Protocol: wire.HTTP1, Sent: []byte("POST /orders HTTP/1.1\r\n\r\n"), Timing: wire.Timing{Start: began, Done: began.Add(time.Second)},
		Response: &wire.Response{Status: 201, Reason: "Created", Proto: "HTTP/1.1", Body: []byte("<script>ord_17</script>")},
	}
	silent := x
	silent.Response, silent.Request.Body = nil, []byte{0xff, 0}
	return Files{
		Plan:  []byte("version: 1\nname: orders\n"),
		HAR:   har.New(har.Creator{Name: "semel", Version: "1"}, nil, x, silent).Write,
		State: map[string][]byte{"orders-before.json": []byte("[]"), "orders-after.json": []byte("[1]")},
	}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(rel))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestFolder(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "runs")
	dir := filepath.Join(parent, "1")
	r := raceRun()
	if err := Write(dir, r, files()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		HARFile, JUnitFile, PlanFile, HTMLFile, MarkdownFile, SARIFFile, RunFile, "state/orders-after.json", "state/orders-before.json",
		RecordFile, "reproduce/1-1-double-effect-race.sh", "reproduce/1-2-in-flight-error-invites-new-key.sh", "reproduce/1-3-retention-not-published.sh",
	}
	slices.Sort(want)
	if got := entries(t, parent); !slices.Equal(got, prefixed("1/", want)) {
		t.Errorf("files %q; want %q", got, want)
	}
	if runtime.GOOS != "windows" {
		for _, n := range append(want, ".", "state", "reproduce") {
			info, err := os.Stat(filepath.Join(dir, n))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s can be read by others: %v", n, info.Mode())
			}
		}
	}

	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Run, r) || f.Extra.Plan != "version: 1\nname: orders\n" || f.Extra.Evidence != HARFile || len(f.Missing) > 0 {
		t.Errorf("%+v", f)
	}
	if len(f.Extra.Exchanges) != 2 || !strings.Contains(f.Extra.Exchanges[1].Request, "Idempotency-Key: \"k-1\"\n\n{\"item\":\"book\"}") ||
		!strings.HasPrefix(f.Extra.Exchanges[1].Response, "HTTP/1.1 201 Created\n") || !strings.HasSuffix(f.Extra.Exchanges[1].Response, "ord_17</script>") ||
		!strings.HasSuffix(f.Extra.Exchanges[2].Request, "\n\xff\x00") || f.Extra.Exchanges[2].Response != "" {
		t.Errorf("%v", f.Extra.Exchanges)
	}
	// The report can be made anew, the same to the byte.
	var b bytes.Buffer
	if err := HTML(&b, f.Run, f.Extra); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, HTMLFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), page) {
		t.Error("the report made anew is another one")
	}
}

func prefixed(prefix string, names []string) (all []string) {
	for _, n := range names {
		all = append(all, prefix+n)
	}
	return all
}

// Nothing that exists is overwritten, and nothing is left behind by a run that
// could not be written.
func TestFolderIsWholeOrNotThere(t *testing.T) {
	failure := errors.New("disk full")
	for what, c := range map[string]struct {
		prepare func(dir string) error
		spoil   func(*Files)
		is      error
	}{
		"a folder":       {prepare: func(dir string) error { return os.Mkdir(dir, 0o700) }, is: ErrExists},
		"a file":         {prepare: func(dir string) error { return os.WriteFile(dir, []byte("mine"), 0o600) }, is: ErrExists},
		"a dead link":    {prepare: func(dir string) error { return os.Symlink("nowhere", dir) }, is: ErrExists},
		"a failing HAR":  {spoil: func(f *Files) { f.HAR = func(w io.Writer) error { _, _ = io.WriteString(w, "{"); return failure } }, is: failure},
		"a broken HAR":   {spoil: func(f *Files) { f.HAR = func(w io.Writer) error { _, err := io.WriteString(w, `{"log":`); return err } }},
		"a way out":      {spoil: func(f *Files) { f.State = map[string][]byte{"../x": nil} }},
		"a Windows name": {spoil: func(f *Files) { f.State = map[string][]byte{`a:b`: nil} }},
		// It is made while the run is being written.
		"a late folder": {spoil: func(f *Files) {
			f.State = nil
		}, is: ErrExists},
	} {
		t.Run(what, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "run")
			if c.prepare != nil {
				if err := c.prepare(dir); err != nil {
					t.Fatal(err)
				}
			}
			f := files()
			if c.spoil != nil {
				c.spoil(&f)
			}
			if what == "a late folder" {
				write := f.HAR
				f.HAR = func(w io.Writer) error {
					if err := os.MkdirAll(filepath.Join(dir, "theirs"), 0o700); err != nil {
						return err
					}
					return write(w)
				}
			}
			err := Write(dir, raceRun(), f)
			if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v; want %v", err, c.is)
			}
			left, err := os.ReadDir(parent)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range left {
				if e.Name() != "run" {
					t.Errorf("%s is left behind", e.Name())
				}
			}
			if c.prepare == nil && what != "a late folder" && len(left) > 0 {
				t.Error("a part of the run is there")
			}
			if b, err := os.ReadFile(dir); what == "a file" && (err != nil || string(b) != "mine") {
				t.Errorf("the file is now %q, %v", b, err)
			}
		})
	}
}

// After every prefix of the writing there is no run at its place: a process that
// dies leaves nothing that looks like one.
func TestFolderAppearsAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f, looked := files(), false
	write := f.HAR
	f.HAR = func(w io.Writer) error {
		looked = true
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder is there before it is whole: %v", err)
		}
		return write(w)
	}
	if err := Write(dir, raceRun(), f); err != nil || !looked {
		t.Fatal(err, looked)
	}
}

func TestOpenRefuses(t *testing.T) {
	whole := write(t, "json", raceRun())
	later := bytes.Replace(whole, []byte(`"format": 1`), []byte(`"format": 2, "operations": 7`), 1)
	for what, c := range map[string]struct {
		content []byte
		says    string
	}{
		"empty":           {nil, "empty"},
		"cut off":         {whole[:len(whole)/2], "cut off"},
		"cut by a byte":   {bytes.TrimSpace(whole)[:len(bytes.TrimSpace(whole))-1], "cut off"},
		"a later format":  {later, "format 2, of a later version"},
		"no format":       {[]byte(`{"id": "x"}`), "no format"},
		"a list":          {[]byte(`[]`), "wrong type"},
		"text":            {[]byte("hello"), "not JSON"},
		"another type":    {bytes.Replace(whole, []byte(`"sent": 22`), []byte(`"sent": "22\u001b"`), 1), "sent is of the wrong type"},
		"a bad time":      {bytes.Replace(whole, []byte(`"started": "2026`), []byte(`"started": "x2026`), 1), "cannot be read"},
		"two":             {append(bytes.Clone(whole), whole...), "not JSON"},
		"deep":            {[]byte(`{"format": 1, "x": ` + strings.Repeat("[", 100_000)), "not JSON"},
		"a folder inside": {[]byte("DIR"), "not a regular file"},
		"none":            {[]byte("NONE"), "not the folder of a run"},
		"large":           {[]byte("LARGE"), "at most"},
		"a link out":      {[]byte("LINK"), "not a regular file"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, RunFile)
			var err error
			switch string(c.content) {
			case "NONE":
			case "DIR":
				err = os.Mkdir(path, 0o700)
			case "LARGE":
				if err = os.WriteFile(path, nil, 0o600); err == nil {
					err = os.Truncate(path, MaxRunFile+1)
				}
			case "LINK":
				other := filepath.Join(t.TempDir(), "secret.json")
				if err = os.WriteFile(other, whole, 0o600); err == nil {
					err = os.Symlink(other, path)
				}
			default:
				err = os.WriteFile(path, c.content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			f, err := Open(dir)
			if err == nil {
				t.Fatalf("%+v", f)
			}
			if !strings.Contains(err.Error(), c.says) || strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("it says %q; want %q", err, c.says)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// A run can be read when what lies beside it is gone or spoiled, and fields of
// this format that a later program has added are passed over.
func TestOpenMakesDo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := Write(dir, raceRun(), files()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, PlanFile)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, HARFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)*3/4], 0o600); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, RunFile)
	var doc map[string]any
	if b, err = os.ReadFile(run); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	doc["later"] = []int{1}
	if b, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(run, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Run, raceRun()) || len(f.Extra.Exchanges) != 1 || fmt.Sprint(f.Missing) != "[plan.yaml exchanges.har: it is cut off, or is not a HAR file]" {
		t.Errorf("%q, %d exchanges", f.Missing, len(f.Extra.Exchanges))
	}
}
