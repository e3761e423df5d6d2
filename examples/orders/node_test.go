package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

// evaluator answers each line, an expression as a JSON string, with a line. Its
// arguments are a folder for keys and the address of the page there is not.
const evaluator = `
import { createInterface } from 'node:readline'
import { fileStorage } from %q
if (process.argv[2]) globalThis.sessionStorage = fileStorage(process.argv[2])
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await (async () => ({ value: await (0, eval)(JSON.parse(line)) }))().catch((error) => ({ error: String(error) }))
  console.log(JSON.stringify(answer))
}`

// startNode starts a Node whose keys are in the folder; none if it is empty. The
// process is killed by kill and with the test.
func (s *stage) startNode(ctx context.Context, folder string) (p tab, kill func()) {
	s.t.Helper()
	here, err := filepath.Abs("../../clients/js")
	if err != nil {
		s.t.Fatal(err)
	}
	module := func(name string) string { return "file://" + filepath.ToSlash(filepath.Join(here, name)) }
	script := filepath.Join(s.t.TempDir(), "evaluator.mjs")
	if err := os.WriteFile(script, fmt.Appendf(nil, evaluator, module("node.js")), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, node(s.t), script, folder)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	s.t.Cleanup(kill)
	whole := strings.NewReplacer("'/once.js'", fmt.Sprintf("%q", module("once.js")), "'/orders'", fmt.Sprintf("'%s/orders'", s.url))
	lines := bufio.NewReader(out)
	return tab{s.t, ctx, func(expression string) (json.RawMessage, error) {
		line, err := json.Marshal(whole.Replace(expression))
		if err != nil {
			return nil, err
		}
		if _, err := in.Write(append(line, '\n')); err != nil {
			return nil, err
		}
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var answer struct {
			Value json.RawMessage
			Error string
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return nil, err
		}
		if answer.Error != "" {
			return nil, errors.New(answer.Error)
		}
		return answer.Value, nil
	}}, kill
}

// node is the path of Node.
func node(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("node"); err == nil {
		return path
	}
	return testenv.Program(t, "nodejs")
}

// TestNode calls once.js in Node, with its keys in files.
func TestNode(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	run := func(name string, test func(s *stage, ctx context.Context)) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			test(newStage(t), ctx)
		})
	}
	for name, test := range anywhere {
		run(name, func(s *stage, ctx context.Context) {
			p, _ := s.startNode(ctx, s.t.TempDir())
			test(s, p)
		})
	}
	run("killed while it runs", testKilled)
	run("nowhere to keep a key", testNowhere)
	run("files", testFiles)
}

// A process that is killed while it sends, and one that takes up its work, are one
// action.
func testKilled(s *stage, ctx context.Context) {
	folder := filepath.Join(s.t.TempDir(), "made", "by it")
	p, kill := s.startNode(ctx, folder)
	arrived, release := s.hold()
	p.begin("first", true)
	await(s.t, ctx, "the order's way to the service", arrived)
	kill()
	p, _ = s.startNode(ctx, folder)
	p.begin("again", true)
	if first, again := await(s.t, ctx, "the first post", s.came), await(s.t, ctx, "the post of the second process", s.came); first != again {
		s.t.Fatalf("the keys are %s and %s", first, again)
	}
	release()
	if got := eval[string](p, `again.answer`); got != "201" {
		s.t.Fatalf("the second process was answered with %s", got)
	}
	s.expect(1, 1)
	if posts := s.seen(); !posts[len(posts)-1].replayed {
		s.t.Fatalf("posts: %+v", posts)
	}
}

func testNowhere(s *stage, ctx context.Context) {
	p, _ := s.startNode(ctx, "")
	eval[bool](p, `delete globalThis.sessionStorage`) // which later versions of Node have
	if got := p.once(1, `{}`); got.Error != "StorageError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.expect(0, 0)
}

// What is on the disk of an entry: nothing for other eyes, one that is damaged is
// not taken for none, and what a killed process left goes.
func testFiles(s *stage, ctx context.Context) {
	folder := filepath.Join(s.t.TempDir(), "keys")
	p, _ := s.startNode(ctx, folder)
	s.set(&s.front, lose)
	for quantity := 1; quantity <= 70; quantity++ { // more than a look shows
		if got := p.once(quantity, `{ tries: 1 }`); got.Error != "TypeError" {
			s.t.Fatalf("once gave %+v", got)
		}
	}
	s.set(&s.front, pass)
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 70 {
		s.t.Fatal(len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			s.t.Fatal(info, err)
		}
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		s.t.Fatal(info, err)
	}
	if n := len(p.kept()); n != 64 {
		s.t.Fatalf("a look shows %d entries", n)
	}
	all := map[string]bool{}
	for range 100 {
		for slot := range p.kept() {
			all[slot] = true
		}
	}
	if len(all) != 70 {
		s.t.Fatalf("looks showed %d entries", len(all))
	}

	path := func(quantity int) string {
		before, err := os.ReadDir(folder)
		if err != nil {
			s.t.Fatal(err)
		}
		p.forget(quantity, `{}`)
		after, err := os.ReadDir(folder)
		if err != nil || len(after) != len(before)-1 {
			s.t.Fatal(len(after), err)
		}
		for i, e := range before {
			if i == len(after) || e.Name() != after[i].Name() {
				return filepath.Join(folder, e.Name())
			}
		}
		return ""
	}(1)
	for _, text := range []string{"", "?", `{"slot":1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
		if got := p.once(1, `{}`); got.Error != "StaleKeyError" {
			s.t.Fatalf("once gave %+v for %q", got, text)
		}
	}
	p.forget(1, `{}`)
	expectTold(s.t, p.once(1, `{}`), 201, false, 71)

	left, written := path+".left", path+".now"
	for _, name := range []string{left, written} {
		if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := os.Chtimes(left, time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
		s.t.Fatal(err)
	}
	for range 100 {
		p.kept()
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		s.t.Errorf("the file that was left is there: %v", err)
	}
	if _, err := os.Stat(written); err != nil {
		s.t.Errorf("the file that is written is gone: %v", err)
	}

	// A folder that takes nothing: nothing is sent.
	if err := os.RemoveAll(folder); err != nil {
		s.t.Fatal(err)
	}
	sent := len(s.seen())
	if got := p.once(2, `{}`); got.Error != "StorageError" {
		s.t.Fatalf("once gave %+v", got)
	}
	if len(s.seen()) != sent {
		s.t.Fatal("a request was sent without its key on disk")
	}
}

// TestPackage holds that the package has its files, that they are what it exports
// once it is installed, and that each option and export is declared and documented.
func TestPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		npm = testenv.Program(t, "npm")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := func(folder, program string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "npm_config_cache="+t.TempDir(), "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %v: %v: %s%s", program, args, err, out, &stderr)
		}
		return string(out)
	}
	const source = "../../clients/js"
	folder := t.TempDir()
	var packed []struct {
		Filename string
		Files    []struct{ Path string }
	}
	if err := json.Unmarshal([]byte(run(source, npm, "pack", "--json", "--pack-destination", folder)), &packed); err != nil || len(packed) != 1 {
		t.Fatal(packed, err)
	}
	var files []string
	for _, f := range packed[0].Files {
		files = append(files, f.Path)
	}
	slices.Sort(files)
	if want := []string{"LICENSE", "README.md", "node.d.ts", "node.js", "once.d.ts", "once.js", "package.json"}; !slices.Equal(files, want) {
		t.Errorf("the package holds %v; want %v", files, want)
	}
	licence := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if licence(source+"/LICENSE") != licence("../../LICENSE") {
		t.Error("the licence is not that of the tree")
	}

	if err := os.WriteFile(filepath.Join(folder, "package.json"), []byte(`{"private":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run(folder, npm, "install", "./"+packed[0].Filename)
	exported := run(folder, node(t), "--input-type=module", "-e", `
		const names = async (name) => Object.keys(await import(name)).sort().join()
		console.log(await names('@semelhq/once'), await names('@semelhq/once/node'))`)
	if exported != "forget,once fileStorage\n" {
		t.Errorf("the installed package exports %s", exported)
	}

	declared, readme := licence(source+"/once.d.ts"), licence(source+"/README.md")
	for _, name := range []string{"once", "forget"} {
		if !strings.Contains(declared, "export function "+name+"(") {
			t.Errorf("%s is not declared", name)
		}
	}
	code := licence(source + "/once.js")
	start := strings.Index(code, " * Options:\n")
	options, _, _ := strings.Cut(code[start:], " * Rejects")
	n := 0
	for line := range strings.Lines(options) {
		name, ok := strings.CutPrefix(line, " *   ")
		if name, _, _ = strings.Cut(name, " "); !ok || name == "" {
			continue
		}
		n++
		if !strings.Contains(declared, "\n  "+name+"?:") || !strings.Contains(readme, "\n| `"+name+"` |") {
			t.Errorf("the option %s is not declared, or not in the README", name)
		}
	}
	if have := strings.Count(declared, "?: ") - strings.Count(declared[strings.Index(declared, "export function"):], "?: "); n != have {
		t.Errorf("%d options are described, %d declared", n, have)
	}
	for name := range strings.SplitSeq("id,maxAge,pause,tries,storage,settled,key", ",") {
		if !strings.Contains(options, " *   "+name+" ") {
			t.Errorf("the option %s is not described", name)
		}
	}
}
