// Command testall runs the tests of every module of the workspace, and of those
// modules outside of it that it is told, says how they go, and closes with one
// plain line:
//
//	N passed, N failed, N skipped
//
// Tests are counted with their subtests. A package that cannot be built, or
// that ends without naming a failed test, counts as one failure, and so does a
// test that began and never ended. A run in which no test ran is a failure.
//
// Usage: testall [flags] [arguments of go test]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testall", flag.ContinueOnError)
	flags.SetOutput(stderr)
	race := flags.String("race", "auto", "race detector: on, off, or auto (on where it works)")
	timeout := flags.Duration("timeout", 20*time.Minute, "time limit of one package")
	packages := flags.String("packages", "work", "package patterns, separated by spaces")
	first := flags.String("first", "", "folders of packages of the workspace to begin with where the pattern work is given, separated by spaces: those that take longest, so that none of them goes on when all others have ended")
	alone := flags.String("alone", "", "folders of modules outside of the workspace that belong to the pattern work, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return 2
	}

	stderr = &lockedWriter{w: stderr}
	r := newReporter(&lockedWriter{w: stdout})
	note, err := "", error(nil)
	useRace := false
	if useRace, note, err = decideRace(*race, os.Getenv("CI") == "true", detector{ctx, stderr}); err != nil {
		r.fail("testall", err.Error())
		return r.close("")
	}

	// An earlier result is no proof: files and programs that a test reads
	// outside its module are not part of the test cache's key. make lint vets
	// everything; here that would be done again, on what the race detector's build is.
	goArgs := []string{"test", "-json", "-count=1", "-timeout=" + timeout.String(), "-vet=off"}
	env := os.Environ()
	if os.Getenv("GOGC") == "" {
		// Tests have small heaps, and a fifth of their time goes into collecting
		// them each time that they have doubled.
		env = append(env, "GOGC=200")
	}
	switch {
	case useRace:
		goArgs = append(goArgs, "-race")
		for _, p := range uninstrumented {
			goArgs = append(goArgs, "-gcflags="+p+"=-race=false")
		}
	case *race == "auto":
		// What the race detector lacks, cgo lacks as well.
		env = append(env, "CGO_ENABLED=0")
	}
	goArgs = append(goArgs, flags.Args()...)
	test := func(r *reporter, parts ...part) {
		for _, m := range parts {
			failed := r.failed
			args, env := slices.Clone(goArgs), slices.Clone(env)
			if m.dir != "" {
				args, env = append(args, "-p=1"), append(env, "GOWORK=off") // what stays out is large
			}
			if err := goTest(ctx, r, m.dir, append(args, m.patterns...), env, stderr); err != nil {
				// A failed test has already been counted. What is left is a go
				// command that failed for a reason of its own.
				if exit := (*exec.ExitError)(nil); r.failed == failed || !errors.As(err, &exit) {
					r.fail("go test", err.Error())
				}
			}
		}
	}
	// Tests often wait for disks and processes, so the modules outside are tested beside
	// the workspace. They begin when its first package has ended: two go commands that
	// begin on an empty cache compile the same packages twice.
	if parts := split(strings.Fields(*packages), strings.Fields(*first), strings.Fields(*alone)); len(parts) > 0 {
		ended := make(chan struct{})
		r.packageEnded = sync.OnceFunc(func() { close(ended) })
		beside := newReporter(r.out)
		var rest sync.WaitGroup
		rest.Go(func() {
			<-ended
			test(beside, parts[1:]...)
		})
		test(r, parts[0])
		r.packageEnded() // if none has
		rest.Wait()
		r.add(beside)
	}
	if ctx.Err() != nil {
		r.fail("testall", "interrupted")
	}
	return r.close(note)
}

// part is what one go command tests.
type part struct {
	dir      string // of a module by itself, or "" for the workspace
	patterns []string
}

// split has each pattern tested where it can be: the folder of a module that is
// outside of the workspace, and what is below it, in that module. The go command
// begins with what is named first.
func split(patterns, first, alone []string) (parts []part) {
	if slices.Contains(patterns, "work") {
		named := make([]string, len(first))
		for i, dir := range first {
			named[i] = "./" + dir
		}
		patterns = slices.Concat(named, patterns)
	}
	for _, p := range patterns {
		at, within := "", p
		for _, dir := range alone {
			if rest, ok := strings.CutPrefix(p+"/", "./"+dir+"/"); ok {
				at, within = dir, strings.TrimSuffix("./"+rest, "/")
			}
		}
		i := slices.IndexFunc(parts, func(q part) bool { return q.dir == at })
		if i < 0 {
			i = len(parts)
			parts = append(parts, part{dir: at})
		}
		parts[i].patterns = append(parts[i].patterns, within)
	}
	if slices.Contains(patterns, "work") {
		for _, dir := range alone {
			parts = append(parts, part{dir, []string{"./..."}})
		}
	}
	return parts
}

// goTest runs the go command in dir and feeds its events to r.
func goTest(ctx context.Context, r *reporter, dir string, args, env []string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := r.read(bufio.NewReaderSize(out, 64<<10))
	return errors.Join(cmd.Wait(), readErr)
}

func (r *reporter) read(in *bufio.Reader) error {
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			r.finish()
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from go test: %w", err)
		}
	}
}
