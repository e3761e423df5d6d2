package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

// planted are links at the place of files that are to be written, and where
// their parts were once written. They lead to files that must not be.
type planted struct {
	t     *testing.T
	files []string
}

func plantLinks(t *testing.T, files ...string) planted {
	t.Helper()
	for _, file := range files {
		noError(t, os.WriteFile(file+".victim", []byte("mine"), 0o600))
		noError(t, os.Symlink(file+".victim", file))
		noError(t, os.Symlink(file+".victim", file+".part"))
	}
	return planted{t, files}
}

// wantUntouched fails the test unless the files were written, for the user
// alone, and what the links led to was not.
func (p planted) wantUntouched() {
	p.t.Helper()
	for _, file := range p.files {
		info, err := os.Lstat(file)
		noError(p.t, err)
		if !info.Mode().IsRegular() || info.Size() == 0 || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			p.t.Errorf("%s is %v with %d bytes", filepath.Base(file), info.Mode(), info.Size())
		}
		text, err := os.ReadFile(file + ".victim")
		noError(p.t, err)
		want(p.t, "what a link to write through leads to", string(text), "mine")
	}
}

// TestReportsWrittenThroughLinks: the reports of a run are for its user alone,
// and links planted at their places are not followed.
func TestReportsWrittenThroughLinks(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(target.Close)
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	files := []string{filepath.Join(dir, "junit.xml"), filepath.Join(dir, "x.sarif"), filepath.Join(dir, "x.md")}
	links := plantLinks(t, files...)
	args := []string{
		"probe", "run", ordersPlan(t, target.URL, fmt.Sprintf("[%q]", hostOf(t, target.URL))), "--send", "--only", "duplicate", "--quiet",
		"--out", run, "--junit", files[0], "--sarif", files[1], "--markdown", files[2],
	}
	want(t, "exit code", semelWith(nil, "", args...).code, probeInconclusive)
	links.wantUntouched()
	entries, err := os.ReadDir(run)
	noError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		noError(t, err)
		if runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v", e.Name(), info.Mode())
		}
	}

	// A report that cannot be written does not lose the run.
	args[len(args)-1] = filepath.Join(dir, "nowhere", "x.md")
	again := filepath.Join(dir, "again")
	args[len(args)-7] = again
	out := semelWith(nil, "", args...)
	want(t, "exit code", out.code, probeFailed)
	if _, err := os.Stat(filepath.Join(again, "run.json")); err != nil || !strings.Contains(out.stderr, "The evidence is in "+again) {
		t.Errorf("%v: %s", err, out.stderr)
	}
}

// TestKeysWithTerminalEscapes: keys are whatever clients chose. In no form of
// the output is there anything that a terminal might obey, and the JSON says the
// same key.
func TestKeysWithTerminalEscapes(t *testing.T) {
	const hostile = "k\u009b31m\u0080\u202e\u2066" // identities may hold these; causes hold anything
	ctx, path := context.Background(), filepath.Join(t.TempDir(), "semel.db")
	s, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	noError(t, err)
	a := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Tenant: hostile, Actor: hostile, Operation: hostile}, Key: hostile},
		semel.Fingerprint{Scheme: semel.SchemeParts, Sum: [32]byte{1}}, time.Hour, time.Hour)
	a.Origin = semel.Origin{RequestID: hostile, EventID: hostile, TraceID: hostile}
	c, err := s.Begin(ctx, a)
	noError(t, err)
	noError(t, c.Hold(ctx, hostile+"\x7f\x1b[2J"))
	noError(t, s.Close(context.Background()))
	store := "sqlite:" + path
	for _, args := range [][]string{
		{"keys", "list"},
		{"keys", "show", c.RecordID()},
		{"audit", "search"},
		{"keys", "resolve", c.RecordID(), "--as", "execute-again", "--because", "x"},
	} {
		var asJSON output
		forms := []string{"--json=false", "--json"}
		if args[1] == "resolve" {
			forms = forms[1:] // once only
		}
		for _, form := range forms {
			asJSON = semelWith([]string{"SEMEL_STORE=" + store, "USER=tester"}, "", append(args, form)...)
			want(t, strings.Join(args, " ")+": exit code", asJSON.code, exitOK)
			for _, r := range asJSON.stdout + asJSON.stderr {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("%v %s: %q comes through", args, form, r)
					break
				}
			}
		}
		var doc any
		noError(t, json.Unmarshal([]byte(asJSON.stdout), &doc))
		want(t, strings.Join(args, " ")+": the key", keyIn(doc), hostile)
	}
}

// keyIn is the first member "key" of a document.
func keyIn(doc any) string {
	switch v := doc.(type) {
	case map[string]any:
		if key, ok := v["key"].(string); ok {
			return key
		}
		for _, member := range v {
			if key := keyIn(member); key != "" {
				return key
			}
		}
	case []any:
		for _, item := range v {
			if key := keyIn(item); key != "" {
				return key
			}
		}
	}
	return ""
}
