package report

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
)

// Names of the files in a run's folder.
const (
	RunFile      = "run.json"
	PlanFile     = "plan.yaml"
	HARFile      = "exchanges.har"
	HTMLFile     = "report.html"
	MarkdownFile = "report.md"
	SARIFFile    = "results.sarif"
	JUnitFile    = "junit.xml"
	StateDir     = "state"
	RecordFile   = "record.json"
	ScriptDir    = "reproduce"
)

// Limits of what Open reads, in bytes.
const (
	MaxRunFile  = 64 << 20
	MaxPlanFile = 4 << 20
	MaxHARFile  = 512 << 20
)

// ErrExists is the error of Write if the folder, or anything of that name,
// exists.
var ErrExists = errors.New("report: the path exists already; a run is never overwritten")

// Files are what a run's folder holds in addition to the reports. All are
// optional.
type Files struct {
	Plan []byte
	// HAR writes all exchanges; WriteHAR of package probe's Result fits. Send N of the run is
	// entry N of it, counted from 1.
	HAR func(io.Writer) error
	// State are files for the folder state, by name. Names consist of letters,
	// digits, dots, dashes and underscores.
	State map[string][]byte
}

// Write creates the folder dir, which must not exist, with the run, its plan,
// its exchanges, what was read of the state, and every report. Only the user
// can read it. It is created whole or not at all: it is written beside dir,
// under a name that begins with a dot and ends in .partial, synced and renamed.
//
// The error wraps ErrExists if dir exists. After an error the partial folder is
// removed; a process that dies leaves it.
func Write(dir string, r *evidence.Run, f Files) (err error) {
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%w: %s", ErrExists, dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report: %w", err)
	}
	for n := range f.State {
		if !stateName(n) {
			return fmt.Errorf("report: %q is not a file name for %s", n, StateDir)
		}
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	temp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".*.partial") // mode 0700
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()

	put := func(file string, write func(io.Writer) error) error {
		if err := WriteFile(filepath.Join(temp, file), write); err != nil {
			return fmt.Errorf("report: %s: %w", file, err)
		}
		return nil
	}
	raw := func(b []byte) func(io.Writer) error {
		return func(w io.Writer) error { _, err := w.Write(b); return err }
	}
	x := Extra{Plan: string(f.Plan)}
	if err := put(RunFile, func(w io.Writer) error { return JSON(w, r) }); err != nil {
		return err
	}
	if f.Plan != nil {
		if err := put(PlanFile, raw(f.Plan)); err != nil {
			return err
		}
	}
	if f.HAR != nil {
		if err := put(HARFile, func(w io.Writer) error { return f.HAR(SafeJSON(w)) }); err != nil {
			return err
		}
		x.Evidence = HARFile
		if x.Exchanges, err = exchanges(filepath.Join(temp, HARFile)); err != nil {
			return err
		}
	}
	if len(f.State) > 0 {
		if err := os.Mkdir(filepath.Join(temp, StateDir), 0o700); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		for n, b := range f.State {
			if err := put(filepath.Join(StateDir, n), raw(b)); err != nil {
				return err
			}
		}
	}
	for _, of := range []struct {
		file  string
		write func(io.Writer) error
	}{
		{HTMLFile, func(w io.Writer) error { return HTML(w, r, x) }},
		{RecordFile, func(w io.Writer) error { return Record(w, r) }},
		{MarkdownFile, func(w io.Writer) error { return Markdown(w, r) }},
		{SARIFFile, func(w io.Writer) error { return SARIF(w, r) }},
		{JUnitFile, func(w io.Writer) error { return JUnit(w, r) }},
	} {
		if err := put(of.file, of.write); err != nil {
			return err
		}
	}
	if list := scripts(r, x); len(list) > 0 {
		if err := os.Mkdir(filepath.Join(temp, ScriptDir), 0o700); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		for _, s := range list {
			if err := put(filepath.FromSlash(s.File), raw([]byte(s.Text))); err != nil {
				return err
			}
		}
	}
	if err := syncDir(temp); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	// Where somebody made dir meanwhile, renaming fails, unless it is an empty
	// folder: then nothing is lost.
	if err := os.Rename(temp, dir); err != nil {
		if _, now := os.Lstat(dir); now == nil {
			return fmt.Errorf("%w: %s", ErrExists, dir)
		}
		return fmt.Errorf("report: %w", err)
	}
	if err := syncDir(parent); err != nil {
		return fmt.Errorf("report: %s is written, but may not survive a loss of power: %w", dir, err)
	}
	return nil
}

// stateName reports whether a name is one on every system.
func stateName(n string) bool {
	if n == "" || len(n) > 100 || strings.Trim(n, ".") == "" || strings.HasSuffix(n, ".") {
		return false
	}
	for _, r := range n {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return filepath.IsLocal(n)
}

// Folder is the folder of a run, as read by Open.
type Folder struct {
	Dir string
	Run *evidence.Run
	// Extra is for HTML, as far as the folder has it.
	Extra Extra
	// Missing are files that a complete folder has and this one lacks, or that
	// could not be read, each with a reason after the name. The run does not need
	// them.
	Missing []string
}

// Open reads the folder of a run. The error says what is wrong: dir is not the
// folder of a run, or run.json is cut off, was written by a later version, is
// too large or is not a regular file. The other files may be missing. Nothing
// outside the folder is read, wherever links in it lead.
func Open(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	defer root.Close()
	b, err := read(root, RunFile, MaxRunFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("report: %s has no %s: it is not the folder of a run", dir, RunFile)
	}
	if err != nil {
		return nil, fmt.Errorf("report: %s: %w", filepath.Join(dir, RunFile), err)
	}
	run, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("report: %s: %w", filepath.Join(dir, RunFile), err)
	}
	f := &Folder{Dir: dir, Run: run}
	lack := func(file string, err error) {
		if errors.Is(err, fs.ErrNotExist) {
			f.Missing = append(f.Missing, file)
			return
		}
		f.Missing = append(f.Missing, file+": "+err.Error())
	}
	if plan, err := read(root, PlanFile, MaxPlanFile); err != nil {
		lack(PlanFile, err)
	} else {
		f.Extra.Plan = string(plan)
	}
	if file, err := open(root, HARFile, MaxHARFile); err != nil {
		lack(HARFile, err)
	} else {
		defer file.Close()
		f.Extra.Evidence = HARFile
		if f.Extra.Exchanges, err = readExchanges(file); err != nil {
			lack(HARFile, err)
		}
	}
	return f, nil
}

// open opens a regular file of at most limit bytes.
func open(root *os.Root, file string, limit int64) (*os.File, error) {
	// A pipe would keep Open waiting for its other end.
	info, err := root.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", info.Size(), limit)
	}
	return root.Open(file)
}

func read(root *os.Root, file string, limit int64) ([]byte, error) {
	f, err := open(root, file, limit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The file may be growing.
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	}
	return b, nil
}

func decode(b []byte) (*evidence.Run, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("it is empty")
	}
	// What a later format means is for later versions to know, so the format
	// is looked at before the rest.
	var head struct {
		Format *int `json:"format"`
	}
	if err := unmarshal(b, &head); err != nil {
		return nil, err
	}
	switch {
	case head.Format == nil || *head.Format < 1:
		return nil, errors.New("it has no format, so it is not a run of the probe")
	case *head.Format > evidence.Format:
		return nil, fmt.Errorf("it has format %d, of a later version of semel; this one reads up to %d", *head.Format, evidence.Format)
	}
	var r evidence.Run
	if err := unmarshal(b, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

func unmarshal(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if err == nil {
		return nil
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		if s.Offset >= int64(len(b)) {
			return fmt.Errorf("it is cut off after %d bytes", len(b))
		}
		return fmt.Errorf("it is not JSON, from byte %d", s.Offset)
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is of the wrong type", visible(t.Field, maxName))
	}
	return errors.New("it cannot be read as a run")
}

func exchanges(path string) (map[int]Exchange, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	defer f.Close()
	xs, err := readExchanges(f)
	if err != nil {
		return nil, fmt.Errorf("report: %s: %w", HARFile, err)
	}
	return xs, nil
}

// readExchanges reads the exchanges of a HAR, one at a time, as far as a report
// shows them.
func readExchanges(r io.Reader) (map[int]Exchange, error) {
	d := json.NewDecoder(bufio.NewReader(r))
	if err := enter(d, '{', "log"); err != nil {
		return nil, err
	}
	if err := enter(d, '{', "entries"); err != nil {
		return nil, err
	}
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("it is not a HAR file")
	}
	all := map[int]Exchange{}
	for n := 1; d.More() && len(all) < 10*mostExchanges; n++ {
		var e struct {
			Request struct {
				Version  string `json:"httpVersion"`
				Method   string `json:"method"`
				URL      string `json:"url"`
				Headers  []harPair
				PostData *struct {
					Text     string
					Encoding string `json:"_encoding"`
				}
			}
			Response struct {
				Version    string `json:"httpVersion"`
				Status     int
				StatusText string
				Headers    []harPair
				Content    struct{ Text, Encoding string }
			}
		}
		if err := d.Decode(&e); err != nil {
			return all, errors.New("it is cut off, or is not a HAR file")
		}
		var x Exchange
		if q := e.Request; q.Method != "" {
			x.Request = q.Method + " " + q.URL + " " + q.Version + "\n" + harHeaders(q.Headers)
			if q.PostData != nil {
				x.Request += "\n" + harBody(q.PostData.Text, q.PostData.Encoding)
			}
		}
		if p := e.Response; p.Status != 0 {
			x.Response = fmt.Sprintf("%s %d %s\n%s\n%s", p.Version, p.Status, p.StatusText, harHeaders(p.Headers), harBody(p.Content.Text, p.Content.Encoding))
		}
		all[n] = x
	}
	return all, nil
}

type harPair struct{ Name, Value string }

func harHeaders(hs []harPair) string {
	var b strings.Builder
	for _, h := range hs {
		if b.Len() > 2*maxExchangeShown {
			break
		}
		b.WriteString(h.Name + ": " + h.Value + "\n")
	}
	return b.String()
}

func harBody(text, encoding string) string {
	if encoding == "base64" {
		if b, err := base64.StdEncoding.DecodeString(text); err == nil {
			text = string(b)
		}
	}
	if len(text) > 2*maxExchangeShown {
		text = text[:2*maxExchangeShown]
	}
	return text
}

// enter reads up to the value of a member of the object that comes next.
func enter(d *json.Decoder, delim json.Delim, member string) error {
	if t, err := d.Token(); err != nil || t != delim {
		return errors.New("it is not a HAR file")
	}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return errors.New("it is not a HAR file")
		}
		if k == member {
			return nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return errors.New("it is cut off, or is not a HAR file")
		}
	}
	return errors.New("it is not a HAR file: it has no " + member)
}
