//go:build !windows

package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// TestMakeRun starts what make run starts, and runs the commands that it prints, and
// those of the README that are for the services it started.
func TestMakeRun(t *testing.T) {
	semel := binary(t)
	testenv.Program(t, "curl")
	dir := t.TempDir()
	source, err := filepath.Abs("../..")
	noError(t, err)
	for _, name := range []string{"bin", "scripts"} {
		noError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	orders := filepath.Join(dir, "bin", "orders")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", orders, "../../examples/orders").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for from, to := range map[string]string{semel: "bin/semel", source + "/scripts/run.sh": "scripts/run.sh", source + "/docs": "docs"} {
		noError(t, os.Symlink(from, filepath.Join(dir, to)))
	}
	printed, at := makeRun(t, dir)

	shell := func(line string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", line)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "no_proxy=*")
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	says := func(line string, code int, parts ...string) string {
		t.Helper()
		out, got := shell(line)
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("%s\ndoes not print %q, but\n%s", line, part, out)
			}
		}
		if got != code {
			t.Errorf("%s\nends with %d, want %d:\n%s", line, got, code, out)
		}
		return out
	}
	var commands []string
	for _, line := range printed {
		if strings.HasPrefix(line, "curl ") || strings.HasPrefix(line, "(") || strings.HasPrefix(line, "bin/") {
			commands = append(commands, line)
		}
	}
	if len(commands) != 7 {
		t.Fatalf("%d commands: %q", len(commands), commands)
	}
	first, again := says(commands[0], 0, " 201 ", "/orders/1"), says(commands[0], 0, " 201 ", "/orders/1", "Idempotency-Replayed: true")
	if strings.Contains(first, "Replayed") || strings.Contains(again, "/orders/2") {
		t.Errorf("the first response is %s\nthe second %s", first, again)
	}
	says(commands[1], 0, " 422 ", "key-mismatch")
	says(commands[2], 0, " 201 ", "/orders/2")
	says(commands[2], 0, " 201 ", "/orders/3")
	total := 0
	for line := range strings.Lines(says(commands[3], 0, " 201\n")) {
		var n, status int
		if _, err := fmt.Sscan(line, &n, &status); err != nil || status != 201 && status != 409 {
			t.Errorf("twenty at once: %s", line)
		}
		total += n
	}
	want(t, "responses", total, 20)
	says(commands[4], 0, `"orders":4`)
	says(commands[5], 0, "-a\n", "-c\n", "completed")
	says(commands[6], 0, "executed", "replayed", "mismatch")

	readme, err := os.ReadFile("../../README.md")
	noError(t, err)
	_, section, _ := strings.Cut(string(readme), "\n### From outside\n\n```sh\n")
	section, _, _ = strings.Cut(section, "```")
	plan, err := os.ReadFile("../../docs/examples/probe/orders.yaml")
	noError(t, err)
	noError(t, os.WriteFile(filepath.Join(dir, "orders.yaml"), []byte(strings.ReplaceAll(string(plan), "127.0.0.1:9000", at)), 0o600))
	lines := slices.Collect(strings.Lines(strings.ReplaceAll(section, "docs/examples/probe/orders.yaml", "orders.yaml")))
	want(t, "lines of the README", len(lines), 3)
	says(lines[0], 0, "dry run: nothing was sent")
	says(lines[1], probeFindings, "not safe to repeat")
	says(lines[2], 0)
	says("cat plan.yaml", 0, "POST", `"item": "book"`)
}

// makeRun runs scripts/run.sh in dir until the test ends. It returns what the script
// says and where the order service listens.
func makeRun(t *testing.T, dir string) (printed []string, orders string) {
	t.Helper()
	// A port that was free a moment ago may be another test's by now.
	for range 5 {
		env := os.Environ()
		for _, name := range []string{"LAB", "GATEWAY", "ORDERS"} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			noError(t, err)
			orders = l.Addr().String()
			env = append(env, name+"="+orders)
			noError(t, l.Close())
		}
		cmd := exec.Command("bash", "scripts/run.sh")
		cmd.Dir, cmd.Env = dir, env
		stdout, err := cmd.StdoutPipe()
		noError(t, err)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		noError(t, cmd.Start())
		printed = nil
		in := bufio.NewScanner(stdout)
		for in.Scan() {
			printed = append(printed, in.Text())
			if strings.HasPrefix(in.Text(), "bin/semel audit") {
				t.Cleanup(func() {
					noError(t, cmd.Process.Signal(syscall.SIGTERM))
					stopped := false
					for in.Scan() {
						stopped = stopped || in.Text() == "run: stopped"
					}
					_ = cmd.Wait()
					want(t, "stopped", stopped, true)
				})
				return printed, orders
			}
		}
		if err := cmd.Wait(); !regexp.MustCompile(`in use|ended; its messages`).MatchString(stderr.String()) {
			t.Fatalf("%v\n%s", err, &stderr)
		}
	}
	t.Fatal("no free ports")
	return nil, ""
}
