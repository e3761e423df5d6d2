package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/store/sqlite"
)

// The test binary is its own helper: with these variables set it plays a role
// as another process on a database file.
const (
	roleVariable = "SEMEL_SQLITE_TEST_ROLE"
	pathVariable = "SEMEL_SQLITE_TEST_PATH"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	play, ok := map[string]func(path string, in *bufio.Scanner) error{
		"open": playOpen, "race": playRace, "work": playWork, "sweep": playSweep, "relay": playRelay, "pay": playPay,
		"mailer": playMailer, "smtpd": playMailServer, "consume": playConsume, "meddle": playMeddle, "jobs": playJobs,
	}[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "no such role: %q\n", role)
		os.Exit(2)
	}
	if err := play(os.Getenv(pathVariable), bufio.NewScanner(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is another process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// command is a process that plays a role.
func command(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	quick.LeaveOut(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), roleVariable+"="+role, pathVariable+"="+path)
	return c
}

func spawn(t *testing.T, role, path string) *child {
	t.Helper()
	c := &child{cmd: command(t, role, path)}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

func (c *child) say(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		t.Fatalf("the child is gone: %v", err)
	}
}

func (c *child) hear(t *testing.T) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("the child fell silent: %v", errors.Join(c.out.Err(), c.cmd.Wait()))
	}
	return c.out.Text()
}

func (c *child) leave(t *testing.T) {
	t.Helper()
	if err := c.in.Close(); err != nil {
		t.Error(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("a child failed: %v", err)
	}
}

// playOpen opens the file at a signal.
func playOpen(path string, in *bufio.Scanner) error {
	fmt.Println("ready")
	in.Scan()
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	fmt.Println("open")
	in.Scan()
	return s.Close(context.Background())
}

// Two processes that find no file, or an empty one, both set it up.
func TestProcessesOpenANewFileTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	var children []*child
	for range 6 {
		children = append(children, spawn(t, "open", path))
	}
	for _, c := range children {
		c.hear(t)
	}
	for _, c := range children {
		c.say(t, "go")
	}
	for _, c := range children {
		c.hear(t)
	}
	for _, c := range children {
		c.leave(t)
	}
	open(t, sqlite.Config{Path: path, MustExist: true})
}

const racers = 25 // goroutines in each process

func guard(s semel.Store) (*semel.Guard, error) {
	return semel.New(semel.Config{Store: s, Policy: semel.Policy{Lease: time.Minute, StoreTimeout: 30 * time.Second}})
}

// submitTogether has n goroutines submit one identity at the same moment, each
// with a handler that adds a line to the file of effects, and returns their
// answers.
func submitTogether(g *semel.Guard, n int, key, effects string) ([]string, error) {
	answers := make([]string, n)
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			out, err := g.Do(context.Background(), semel.Submit{Identity: identity(key)}, func(context.Context) (semel.Result, error) {
				f, err := os.OpenFile(effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					return semel.Result{}, err
				}
				_, err = fmt.Fprintln(f, key)
				return semel.Result{Codec: "test/1", Body: []byte("effect of " + key)}, errors.Join(err, f.Close())
			})
			answers[i] = out.Answer.String()
			switch out.Answer {
			case semel.AnswerExecuted, semel.AnswerReplayed:
				if err == nil && string(out.Result.Body) != "effect of "+key {
					err = fmt.Errorf("%v with body %q", out.Answer, out.Result.Body)
				}
			case semel.AnswerInProgress:
				err = nil
			default:
				err = fmt.Errorf("answered %v: %w", out.Answer, err)
			}
			errs[i] = err
		})
	}
	close(start)
	wg.Wait()
	return answers, errors.Join(errs...)
}

func wantOneEffect(t *testing.T, key, effects string, answers []string) {
	t.Helper()
	content, err := os.ReadFile(effects)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(content), key+"\n"); n != 1 {
		t.Errorf("%s took effect %d times; want once", key, n)
	}
	count := map[string]int{}
	for _, a := range answers {
		count[a]++
	}
	if count["executed"] != 1 || count["executed"]+count["replayed"]+count["in_progress"] != len(answers) {
		t.Errorf("%s was answered %v; want executed once, and else replayed or in_progress", key, count)
	}
}

func TestGoroutinesRaceOnOneIdentity(t *testing.T) {
	dir := t.TempDir()
	effects := filepath.Join(dir, "effects")
	g, err := guard(open(t, sqlite.Config{Path: filepath.Join(dir, "semel.db")}))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		key := fmt.Sprint("key-", round)
		answers, err := submitTogether(g, 200, key, effects)
		if err != nil {
			t.Error(err)
		}
		wantOneEffect(t, key, effects, answers)
	}
}

func playRace(path string, in *bufio.Scanner) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	g, err := guard(s)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in.Scan() {
		answers, err := submitTogether(g, racers, in.Text(), path+".effects")
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(answers, " "))
	}
	return errors.Join(g.Drain(context.Background()), s.Close(context.Background()))
}

func TestProcessesRaceOnOneIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	var children []*child
	for range 8 {
		children = append(children, spawn(t, "race", path))
	}
	for _, c := range children {
		c.hear(t)
	}
	for round := range 4 {
		key := fmt.Sprint("key-", round)
		for _, c := range children {
			c.say(t, key)
		}
		var answers []string
		for _, c := range children {
			answers = append(answers, strings.Fields(c.hear(t))...)
		}
		if len(answers) != len(children)*racers {
			t.Errorf("%d answers to %d submits", len(answers), len(children)*racers)
		}
		wantOneEffect(t, key, path+".effects", answers)
	}
	for _, c := range children {
		c.leave(t)
	}
	// Who comes later is told of the one effect.
	g, err := guard(open(t, sqlite.Config{Path: path}))
	if err != nil {
		t.Fatal(err)
	}
	answers, err := submitTogether(g, racers, "key-0", path+".effects")
	if err != nil {
		t.Error(err)
	}
	for _, a := range answers {
		if a != "replayed" {
			t.Errorf("a later submit was answered %s", a)
		}
	}
}

// playMeddle changes the record of "a" in the ways of operators and of another
// program's sweep: "delete", "restore", "change BODY", "expire".
func playMeddle(path string, in *bufio.Scanner) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TEMP TABLE kept AS SELECT * FROM record WHERE key = 'a'"); err != nil {
		return err
	}
	fmt.Println("ready")
	for in.Scan() {
		command, body, _ := strings.Cut(in.Text(), " ")
		_, err := db.Exec(map[string]string{
			"delete":  "DELETE FROM record WHERE key = 'a' AND ?1 = ''",
			"restore": "INSERT OR REPLACE INTO record SELECT * FROM kept WHERE ?1 = ''",
			"change":  "UPDATE record SET body = CAST(?1 AS BLOB) WHERE key = 'a'",
			"expire":  "UPDATE record SET expires_at = 1 WHERE key = 'a' AND ?1 = ''",
		}[command], body)
		if err == nil && command == "expire" {
			_, err = s.Sweep(ctx, 1000)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		fmt.Println("done")
	}
	return errors.Join(db.Close(), s.Close(context.Background()))
}

// What another process does to a completed record is seen by whoever asks after
// it was done, however often the record was asked for before, while this process
// writes as well.
func TestReplaysSeeWhatOthersChange(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path, BusyTimeout: time.Minute})
	c, err := s.Begin(t.Context(), attempt("a"))
	if err == nil {
		_, err = c.Complete(t.Context(), semel.Result{Body: []byte("first")})
	}
	if err != nil {
		t.Fatal(err)
	}
	other := spawn(t, "meddle", path)
	other.hear(t)
	find := func() string {
		rec, err := s.Find(t.Context(), identity("a"))
		if err != nil && !errors.Is(err, semel.ErrNotFound) {
			t.Error(err)
		}
		return string(rec.Result.Body)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if find(); i == 0 && n%10 == 0 {
					if _, err := s.Begin(t.Context(), attempt(semel.NewKey())); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	hits := 0
	for round := range 50 {
		body := fmt.Sprint("body ", round)
		for _, step := range []struct{ command, want string }{
			{"change " + body, body}, {"delete", ""}, {"restore", "first"}, {"expire", ""}, {"restore", "first"},
		} {
			other.say(t, step.command)
			other.hear(t)
			for range 3 {
				if got := find(); got != step.want {
					t.Fatalf("%q was answered after %q; want %q", got, step.command, step.want)
				}
			}
			if s.Cached(identity("a")) {
				hits++
			}
		}
	}
	if hits == 0 {
		t.Error("nothing was ever cached")
	}
	close(stop)
	wg.Wait()
	other.leave(t)
}
