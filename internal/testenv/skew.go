package testenv

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// EnvSkew names the environment variable that says by how much the clock of a
// program built with BuildSkewed is wrong, in the form of time.ParseDuration,
// in whole seconds. Without it the clock is right.
const EnvSkew = "SEMEL_TEST_CLOCK_SKEW"

// skewSource goes into package time. Timers, deadlines and ages are measured by
// the monotonic clock, which a wrong wall clock leaves alone.
const skewSource = `package time

import (
	"errors"
	"syscall"
)

var wallSkew = func() int64 {
	text, _ := syscall.Getenv("` + EnvSkew + `")
	if text == "" {
		return 0
	}
	d, err := ParseDuration(text)
	if err == nil && d%Second != 0 {
		err = errors.New("not in whole seconds")
	}
	if err != nil {
		panic("time: ` + EnvSkew + ` is " + text + ": " + err.Error())
	}
	return int64(d / Second)
}()

`

// BuildSkewed builds a program on whose host the wall clock is wrong by what
// EnvSkew says when it is started, and returns its path. It is gone at the end
// of the test. All of the program sees that clock, its drivers included, since
// it is time.Now of the standard library that is wrong.
//
// The command is one of the go command without flags for the output: "build",
// ".", or "test", "-c", ".". The first build on a machine takes half a minute,
// because nearly all of the standard library depends on package time; the go
// command caches it.
func BuildSkewed(t testing.TB, command ...string) (program string) {
	t.Helper()
	long(t)
	goTool, err := exec.LookPath("go")
	if err != nil {
		missing(t, err)
	}
	root, err := exec.CommandContext(t.Context(), goTool, "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("testenv: go env GOROOT: %v", err)
	}
	library := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	// In Now alone.
	const reading = "\tsec, nsec, mono := runtimeNow()\n"
	if n := strings.Count(string(source), reading); n != 1 {
		t.Fatalf("testenv: package time reads the wall clock in %d places that look as expected; want 1: adapt BuildSkewed to this version of Go", n)
	}
	skewed := strings.Replace(string(source), reading, reading+"\tsec += wallSkew\n", 1)

	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range map[string]string{"time.go": skewed, "semel_skew.go": skewSource} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatalf("testenv: %v", err)
		}
		overlay.Replace[filepath.Join(library, name)] = path
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatalf("testenv: %v", err)
	}

	program = filepath.Join(dir, "skewed.exe") // a name that every system executes
	args := append([]string{command[0], "-overlay", list, "-o", program}, command[1:]...)
	out, err := exec.CommandContext(t.Context(), goTool, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("testenv: go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return program
}
