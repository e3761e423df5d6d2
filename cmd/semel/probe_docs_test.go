package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/quick"
)

// TestProbeQuickStart does what the quick starts of docs/probe.md and docs/ja/probe.md
// say, with their plan of ten lines, and gets what they show.
func TestProbeQuickStart(t *testing.T) {
	quick.LeaveOut(t)
	for name, heading := range map[string]string{"probe.md": "Quick start", "ja/probe.md": "クイックスタート"} {
		t.Run(name, func(t *testing.T) { probeQuickStart(t, name, heading) })
	}
}

func probeQuickStart(t *testing.T, name, heading string) {
	text, err := os.ReadFile("../../docs/" + name)
	noError(t, err)
	_, page, ok := strings.Cut(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/%s has no quick start", name)
	}
	page, _, _ = strings.Cut(page, "\n## ")
	_, plan, _ := strings.Cut(page, "```yaml\n")
	plan, _, _ = strings.Cut(plan, "```")
	if n := strings.Count(plan, "\n"); n != 10 {
		t.Errorf("the plan has %d lines; the quick start promises ten", n)
	}
	if n := strings.Count(page, "\n"); n > 70 {
		t.Errorf("the quick start has %d lines, more than a page", n)
	}
	file, err := os.ReadFile("../../docs/examples/probe/orders.yaml")
	noError(t, err)
	if _, same, _ := strings.Cut(strings.ReplaceAll(string(file), "\r\n", "\n"), "\n"); same != plan {
		t.Errorf("docs/examples/probe/orders.yaml is\n%s\nthe quick start's plan is\n%s", same, plan)
	}
	orders := hostOf(t, startOrders(t))
	here := func(s string) string { return strings.ReplaceAll(s, "127.0.0.1:9000", orders) }
	dir := t.TempDir()
	noError(t, os.WriteFile(filepath.Join(dir, "orders.yaml"), []byte(here(plan)), 0o600))

	blocks := strings.Split(page, "```console\n$ semel ")[1:]
	want(t, "commands", len(blocks), 2)
	for i, code := range []int{exitOK, probeFindings} {
		block, _, _ := strings.Cut(blocks[i], "```")
		lines := strings.Split(strings.TrimSpace(block), "\n")
		args := strings.Fields(lines[0])
		for i, a := range args {
			if a == "orders.yaml" || strings.HasPrefix(a, "probe-") {
				args[i] = filepath.Join(dir, a)
			}
		}
		out := semelWith(nil, "", args...)
		want(t, "exit code of "+lines[0], out.code, code)
		// The terminal breaks lines, and the guide does not.
		got := strings.Join(strings.Fields(strings.ReplaceAll(filepath.ToSlash(out.stdout), filepath.ToSlash(dir)+"/", "")), " ")
		for _, line := range lines[1:] {
			if line == "[...]" {
				continue
			}
			shown := strings.Join(strings.Fields(here(line)), " ")
			at := strings.Index(got, shown)
			if at < 0 {
				t.Errorf("semel %s does not say, after what was found, %q\n%s", lines[0], shown, out.stdout)
				continue
			}
			got = got[at+len(shown):]
		}
	}
	for _, file := range []string{"report.html", "record.json", "reproduce/1-1-double-effect-sequential.sh"} {
		if _, err := os.Stat(filepath.Join(dir, "probe-1", filepath.FromSlash(file))); err != nil {
			t.Errorf("the folder has no %s: %v", file, err)
		}
	}
}
