// Command peers measures semel beside what its users would have without it, and
// says what each of them promises.
//
//	peers [-rounds 5] [-time 1s] [-only regexp] [-json file] [-facts]
//
// It runs the benchmarks of this folder, of bench and of store/postgres, and
// real proxies under wrk, in turn, as often as -rounds says, and prints one
// table: medians, and the ratios of figures of the same round with the smallest and
// the largest. What is not installed is named and left out.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		err = serve(ctx, os.Args[2:])
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

// suite is a package's benchmarks.
type suite struct {
	dir   string // from the root of the tree
	bench string // -test.bench
	time  string // -test.benchtime; "" for that of the command line
	alone bool   // a module outside of the workspace
}

var suites = []suite{
	{dir: "bench/peers", bench: "^BenchmarkProtection$/^(semel-.*|fiber-v3|by-hand-sqlite|watermill)$", alone: true},
	{dir: "bench", bench: "^BenchmarkSQLite$/^(store|plain)$/^(callers=.*|grouped=true)$"},
	{dir: "bench", bench: "^BenchmarkSQLiteReplay$"},
	{dir: "store/postgres", bench: "^BenchmarkPayment$/^away=0s$", time: "1x"},
	{dir: "bench/peers", bench: "^BenchmarkOutbox$/^enqueue$", time: "3000x", alone: true},
	{dir: "bench/peers", bench: "^BenchmarkOutbox$/^work$", time: "20000x", alone: true},
	{dir: "bench", bench: "^BenchmarkGateway$"},
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "the root of the tree")
	rounds := flags.Int("rounds", 5, "how often everything is run, in turn")
	span := flags.Duration("time", time.Second, "how long one benchmark runs")
	only := flags.String("only", "", "run the suites (folder and benchmark) and real processes (wrk) that match this regular expression")
	file := flags.String("json", "", "write the figures to this file, too")
	justFacts := flags.Bool("facts", false, "print what each promises, and measure nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *justFacts {
		return printFacts(stdout)
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "semel-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	type part struct {
		name string
		run  func(context.Context) (values, error)
	}
	var parts []part
	programs := map[string]string{}
	for _, s := range suites {
		if !wanted.MatchString(s.dir + " " + s.bench) {
			continue
		}
		program := programs[s.dir]
		if program == "" {
			program = filepath.Join(tmp, strings.ReplaceAll(s.dir, "/", "-")+".test")
			if err := s.build(ctx, *root, program, stderr); err != nil {
				return err
			}
			programs[s.dir] = program
		}
		parts = append(parts, part{s.dir + " " + s.bench, func(ctx context.Context) (values, error) {
			return s.run(ctx, *root, program, *span, stderr)
		}})
	}
	if wanted.MatchString("wrk") {
		r, err := newReal(ctx, *root, tmp, *span, stderr)
		if err != nil {
			return err
		}
		parts = append(parts, part{"wrk", r.run})
	}

	all := make([]values, *rounds)
	var failed []string
	for i := range all {
		all[i] = values{}
		for _, p := range parts {
			fmt.Fprintf(stderr, "round %d of %d: %s\n", i+1, *rounds, p.name)
			got, err := p.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil { // the others go on
				fmt.Fprintf(stderr, "failed: %s: %v\n", p.name, err)
				failed = append(failed, p.name)
			}
			for name, v := range got {
				all[i][name] = v
			}
		}
	}
	results := compare(all)
	fmt.Fprintf(stdout, "%s, %s/%s, %d CPUs, %s; %d rounds, %v each; medians, and of the ratios the smallest and the largest\n\n",
		revision(ctx, *root), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), *rounds, *span)
	if err := printTable(stdout, results); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	if err := printFacts(stdout); err != nil {
		return err
	}
	if *file != "" {
		if err := writeJSON(*file, map[string]any{
			"revision": revision(ctx, *root), "rounds": *rounds, "time": span.String(), "cpus": runtime.NumCPU(), "go": runtime.Version(),
			"results": results, "facts": factsJSON(), "figures": all,
		}); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("could not be measured: %s", strings.Join(failed, "; "))
	}
	return nil
}

func factsJSON() []map[string]any {
	var all []map[string]any
	for _, f := range facts {
		all = append(all, map[string]any{"id": f.id, "asks": f.asks, "from_source": f.read, "says": f.says})
	}
	return all
}

func writeJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func revision(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown revision"
	}
	return strings.TrimSpace(string(out))
}

func (s suite) build(ctx context.Context, root, program string, stderr io.Writer) error {
	c := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	c.Dir = filepath.Join(root, s.dir)
	c.Stderr = stderr
	c.Env = os.Environ()
	if s.alone {
		c.Env = append(c.Env, "GOWORK=off")
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("build the benchmarks of %s: %w", s.dir, err)
	}
	return nil
}

func (s suite) run(ctx context.Context, root, program string, span time.Duration, stderr io.Writer) (values, error) {
	benchtime := s.time
	if benchtime == "" {
		benchtime = span.String()
	}
	c := exec.CommandContext(ctx, program, "-test.run=^$", "-test.bench="+s.bench, "-test.benchtime="+benchtime, "-test.benchmem", "-test.timeout=0")
	c.Dir = filepath.Join(root, s.dir)
	// Interrupted, it ends the servers that it has started.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	c.Stderr = stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	got, err := parse(bytes.NewReader(out))
	if err == nil && len(got) == 0 {
		fmt.Fprintf(stderr, "left out: %s measured nothing:\n%s", s.dir, out)
	}
	return got, err
}

// parse reads the lines of benchmarks: a name, a count, and pairs of a figure
// and its unit.
func parse(r io.Reader) (values, error) {
	got := values{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := fields[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 { // GOMAXPROCS, if more than 1
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		for i := 2; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			got[name+" "+fields[i+1]] = v
		}
	}
	return got, lines.Err()
}
