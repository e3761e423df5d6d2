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
	return s.Close()
}

// Two processes that find no file, or an empty one, both set it up.
func TestProcessesOpenANewFileTogether(t *testing.T) {
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
	return errors.Join(g.Drain(context.Background()), s.Close())
}

func TestProcessesRaceOnOneIdentity(t *testing.T) {
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
	return errors.Join(db.Close(), s.Close())
}

// What another process does to a completed record is seen by whoever asks after
// it was done, however often the record was asked for before, while this process
// writes as well.
func TestReplaysSeeWhatOthersChange(t *testing.T) {
	quick.LeaveOut(t)
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

// playWork claims and settles identities without end, and says what was
// acknowledged: "claimed", "completed" or "released", then key and fence.
func playWork(path string, _ *bufio.Scanner) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	ctx := context.Background()
	failed := make(chan error)
	for worker := range 16 {
		go func() {
			for i := 0; ; i++ {
				key := semel.NewKey()
				c, err := s.Begin(ctx, semel.NewAttempt(identity(key), semel.Fingerprint{}, time.Hour, time.Hour))
				if err != nil {
					failed <- err
					return
				}
				fmt.Fprintf(os.Stdout, "claimed %s %d\n", key, c.Fence()) // one system call: lines stay whole
				if (worker+i)%4 == 0 {
					if err := c.Release(ctx); err != nil {
						failed <- err
						return
					}
					fmt.Fprintf(os.Stdout, "released %s %d\n", key, c.Fence())
					continue
				}
				if _, err := c.Complete(ctx, semel.Result{Codec: "test/1", Body: bodyOf(key)}); err != nil {
					failed <- err
					return
				}
				fmt.Fprintf(os.Stdout, "completed %s %d\n", key, c.Fence())
			}
		}()
	}
	return <-failed
}

// bodyOf is long enough to span pages, so that half a write would show.
func bodyOf(key string) []byte { return []byte(strings.Repeat(key, 300)) }

// Processes are killed in the middle of their groups, again and again. What
// they acknowledged stands; what they did not is there whole or not at all.
func TestKilledProcessesLeaveNoHalfState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	type claim struct {
		fence string
		last  string // of claimed, completed, released
	}
	claims := map[string]claim{}
	fences := map[string]string{}
	for round := range 4 {
		var (
			mu sync.Mutex
			wg sync.WaitGroup
		)
		for n := range 3 {
			c := spawn(t, "work", path)
			wg.Go(func() {
				heard := 0
				for c.out.Scan() { // to the end: what was said before the kill counts
					if heard++; heard == 150+100*n+40*round {
						_ = c.cmd.Process.Kill()
					}
					f := strings.Fields(c.out.Text())
					if len(f) != 3 {
						t.Errorf("a child said %q", c.out.Text())
						continue
					}
					mu.Lock()
					if f[0] == "claimed" {
						if other, ok := fences[f[2]]; ok {
							t.Errorf("fence %s was granted to %s and to %s", f[2], other, f[1])
						}
						fences[f[2]] = f[1]
					}
					claims[f[1]] = claim{fence: f[2], last: f[0]}
					mu.Unlock()
				}
				_ = c.cmd.Wait()
				if heard < 150 {
					t.Errorf("a child ended by itself after %d lines", heard)
				}
			})
		}
		wg.Wait()
	}

	s := open(t, sqlite.Config{Path: path, MustExist: true})
	for key, want := range claims {
		r, err := s.Find(t.Context(), identity(key))
		switch {
		case errors.Is(err, semel.ErrNotFound):
			if want.last == "completed" {
				t.Fatalf("%s was acknowledged as completed and is gone", key)
			}
			entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: key})
			if err != nil || len(entries) != 1 || entries[0].Kind != semel.TrailReleased {
				t.Fatalf("%s was %s and is gone; its trail: %+v, %v", key, want.last, entries, err)
			}
		case err != nil:
			t.Fatal(err)
		case want.last == "released":
			t.Fatalf("%s was acknowledged as released and is %v", key, r.State)
		case fmt.Sprint(r.Fence) != want.fence:
			t.Fatalf("%s was granted fence %s and has %d", key, want.fence, r.Fence)
		case want.last == "completed" && r.State != semel.StateCompleted:
			t.Fatalf("%s was acknowledged as completed and is %v", key, r.State)
		}
	}

	told := map[string]semel.TrailEntry{}
	seqs := map[string]uint64{}
	for after := uint64(0); ; {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{After: after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			after = e.Position
			if seqs[e.Instance]++; e.Seq != seqs[e.Instance] {
				t.Fatalf("entry %d of %s has number %d", seqs[e.Instance], e.Instance, e.Seq)
			}
			if _, twice := told[e.RecordID]; twice {
				t.Fatalf("record %s has a second entry: %+v", e.RecordID, e)
			}
			told[e.RecordID] = e
		}
	}
	for f := (semel.Filter{Limit: 1000}); ; {
		records, err := s.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		for _, r := range records {
			f.After = r.Fence
			e, ok := told[r.ID]
			if ok != (r.State == semel.StateCompleted) || ok && (e.Kind != semel.TrailExecuted || e.Fence != r.Fence) {
				t.Fatalf("a record that is %v has the entry %+v (%v)", r.State, e, ok)
			}
			delete(told, r.ID)
		}
	}
	for _, e := range told {
		if e.Kind != semel.TrailReleased {
			t.Fatalf("the trail tells of a record that is not there: %+v", e)
		}
	}

	db := raw(t, path)
	count := func(what, query string) {
		t.Helper()
		var n int
		if err := db.QueryRow(query).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d %s (%v)", n, what, err)
		}
	}
	count("records in progress have a result", `SELECT count(*) FROM record r WHERE state = 1
		AND (codec IS NOT NULL OR body IS NOT NULL OR expires_at IS NOT NULL OR position IS NOT NULL)`)
	count("records are ahead of the counter", `SELECT count(*) FROM record WHERE coalesce(fence, number) > (SELECT fence FROM counter)`)
	rows, err := db.Query("SELECT key, body FROM record WHERE state = 2")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	completed := 0
	for rows.Next() {
		var key string
		var body []byte
		if err := rows.Scan(&key, &body); err != nil {
			t.Fatal(err)
		}
		if completed++; string(body) != string(bodyOf(key)) {
			t.Errorf("the result of %s is %d bytes long and wrong", key, len(body))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	var check string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("the file is damaged: %s (%v)", check, err)
	}
	t.Logf("%d identities, %d completed", len(claims), completed)
}

// playSweep completes identities whose retention is over soon, and sweeps
// meanwhile.
func playSweep(path string, _ *bufio.Scanner) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	ctx := context.Background()
	failed := make(chan error)
	for range 16 {
		go func() {
			for {
				key := semel.NewKey()
				c, err := s.Begin(ctx, semel.NewAttempt(identity(key), semel.Fingerprint{}, time.Hour, 5*time.Millisecond))
				if err == nil {
					_, err = c.Complete(ctx, semel.Result{Codec: "test/1"})
				}
				if err != nil {
					failed <- err
					return
				}
				fmt.Fprintf(os.Stdout, "completed %s\n", key)
			}
		}()
	}
	go func() {
		for {
			if _, err := s.Sweep(ctx, 1000); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

// Sweeps are killed half way. Whether its record is there, swept, or was about
// to be, an execution that was acknowledged is in the trail once, where a reader
// who follows comes across it.
func TestKilledSweepsLoseNoEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	completed, seen := map[string]bool{}, map[string]int{}
	after := uint64(0)
	follow := func(s *sqlite.Store) {
		t.Helper()
		for {
			page, err := s.Trail(t.Context(), semel.TrailFilter{After: after, Limit: 50})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				return
			}
			for _, e := range page {
				if e.Kind != semel.TrailExecuted || e.Position <= after {
					t.Fatalf("behind position %d comes %+v", after, e)
				}
				seen[e.Key]++
				after = e.Position
			}
		}
	}
	for round := range 4 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for n := range 2 {
			c := spawn(t, "sweep", path)
			wg.Go(func() {
				heard := 0
				for c.out.Scan() {
					if heard++; heard == 200+70*n+90*round {
						_ = c.cmd.Process.Kill()
					}
					if key, ok := strings.CutPrefix(c.out.Text(), "completed "); ok {
						mu.Lock()
						completed[key] = true
						mu.Unlock()
					}
				}
				_ = c.cmd.Wait()
				if heard < 200 {
					t.Errorf("a child ended by itself after %d lines", heard)
				}
			})
		}
		for range 20 { // while they are at it
			follow(s)
		}
		wg.Wait()
	}
	follow(s)
	whole := map[string]int{}
	for f := (semel.TrailFilter{Limit: 1000}); ; {
		page, err := s.Trail(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			whole[e.Key]++
			f.After = e.Position
		}
		if len(page) == 0 {
			break
		}
	}
	for key := range completed {
		if seen[key] != 1 || whole[key] != 1 {
			t.Fatalf("%s was completed; a follower saw its entry %d times, and the trail has it %d times", key, seen[key], whole[key])
		}
	}
	for key, n := range whole {
		if n != 1 || seen[key] != 1 {
			t.Fatalf("%s is in the trail %d times, and was seen %d times", key, n, seen[key])
		}
	}
	var swept int
	if err := raw(t, path).QueryRow("SELECT count(*) FROM trail").Scan(&swept); err != nil || swept == 0 || swept == len(whole) {
		t.Logf("%d of %d entries are written down, %v", swept, len(whole), err)
	}
}
