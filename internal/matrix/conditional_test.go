package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/internal/testenv"
)

// conditionalCell is one request for one thing.
type conditionalCell struct {
	method    string
	condition string // the lines of the request
	required  bool
	keyed     bool
	at        conditional.State
}

func (c conditionalCell) String() string {
	return fmt.Sprintf("%s %q required=%t keyed=%t on version %d gone=%t", c.method, c.condition, c.required, c.keyed, c.at.Version, c.at.Gone)
}

// What requests depend on; the version is 7 wherever there is one.
var conditions = []string{
	"",
	`If-Match: "7"`, `If-Match: "6"`, `If-Match: "6", "7-gzip"`, `If-Match: *`, `If-Match: W/"7"`, `If-Match: 7`,
	`If-None-Match: *`, `If-None-Match: "7"`,
}

func conditionalCells() (all []conditionalCell) {
	for _, method := range []string{"PUT", "PATCH", "DELETE"} {
		for _, condition := range conditions {
			for _, required := range []bool{false, true} {
				for _, keyed := range []bool{false, true} {
					for _, at := range []conditional.State{{Version: 7}, {Version: 7, Gone: true}, {}} {
						all = append(all, conditionalCell{method, condition, required, keyed, at})
					}
				}
			}
		}
	}
	return all
}

// expected is what one execution of the request leads to: RFC 9110 13 and RFC
// 6585 3 once more, as a table.
func (c conditionalCell) expected(at conditional.State) (status int, then conditional.State) {
	there := at.Version != 0 && !at.Gone
	holds := map[string]bool{
		"":                           true,
		`If-Match: "7"`:              there && at.Version == 7,
		`If-Match: "6", "7-gzip"`:    there && at.Version == 7,
		`If-Match: *`:                there,
		`If-None-Match: *`:           !there,
		`If-None-Match: "7"`:         !there || at.Version != 7,
		`If-Match: "8"`:              there && at.Version == 8,
		`If-Match: "6"`:              false,
		`If-Match: W/"7"`:            false,
		`If-Match: "something-else"`: false,
	}
	next := conditional.State{Version: at.Version + 1, Gone: c.method == "DELETE"}
	switch {
	case c.condition == `If-Match: 7`:
		return 400, at
	case c.required && (c.condition == "" || c.condition == `If-None-Match: "7"`):
		return 428, at
	case !there && c.method != "PUT":
		return 404, at
	case !holds[c.condition]:
		return 412, at
	case !there:
		return 201, next
	}
	return 200, next
}

// Every request, with a key and without, once, again, and while the first is
// running, over every database and both ways to keep claims.
func TestConditional(t *testing.T) {
	t.Parallel()
	for _, kind := range thingStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newThings(t, kind)
			all := conditionalCells()
			var wg sync.WaitGroup
			next := make(chan int)
			for range 4 {
				wg.Go(func() {
					for i := range next {
						if wrong := s.play(t, all[i], fmt.Sprintf("/things/%d", i)); len(wrong) > 0 {
							t.Errorf("%v:\n\t%s", all[i], strings.Join(wrong, "\n\t"))
						}
					}
				})
			}
			for i := range all {
				next <- i
			}
			close(next)
			wg.Wait()
			t.Logf("%d cells", len(all))
		})
	}
}

func (s *things) play(t *testing.T, c conditionalCell, path string) (wrong []string) {
	check := func(what string, w *httptest.ResponseRecorder, status int, replayed bool) {
		if w.Code != status || (w.Header().Get("Idempotency-Replayed") == "true") != replayed {
			wrong = append(wrong, fmt.Sprintf("%s: %d %v %s; want %d, replayed: %t", what, w.Code, w.Header(), w.Body, status, replayed))
		}
	}
	state := func(what, id string, want conditional.State, writes int) {
		if at, n := s.find(t, id); at != want || n != writes {
			wrong = append(wrong, fmt.Sprintf("%s: %+v after %d writes, want %+v after %d", what, at, n, want, writes))
		}
	}
	writes := func(status int) int {
		if status < 400 {
			return 1
		}
		return 0
	}
	inner := conditional.New(conditional.Config{Require: func(*http.Request) bool { return c.required }})
	h := s.protect(inner(s.handler()))
	send := func(id string, g *gate) *httptest.ResponseRecorder {
		r := httptest.NewRequest(c.method, id, nil)
		if name, value, ok := strings.Cut(c.condition, ": "); ok {
			r.Header.Set(name, value)
		}
		if c.keyed {
			r.Header.Set("Idempotency-Key", "k")
		}
		if g != nil {
			r = r.WithContext(context.WithValue(r.Context(), gateKey{}, g))
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	first, then := c.expected(c.at)
	second, last := c.expected(then) // of a second execution

	// Once, and again.
	s.add(t, path, c.at)
	check("first", send(path, nil), first, false)
	state("first", path, then, writes(first))
	// A refusal for the precondition leaves no record; everything else does.
	recorded := c.keyed && first != 400 && first != 412 && first != 428
	if recorded {
		check("replay", send(path, nil), first, true)
		state("replay", path, then, writes(first))
	} else {
		check("again", send(path, nil), second, false)
		state("again", path, last, writes(first)+writes(second))
	}

	// The key with a precondition for what is there now.
	if c.keyed {
		old := c.condition
		c.condition = `If-Match: "` + strconv.FormatInt(then.Version, 10) + `"`
		if first < 400 {
			c.condition = `If-Match: "8"`
		}
		if recorded && old != c.condition {
			check("another precondition", send(path, nil), 422, false)
			state("another precondition", path, then, writes(first))
		} else if !recorded && then.Version == 7 && old != c.condition {
			status, then := c.expected(c.at)
			check("corrected", send(path, nil), status, false)
			state("corrected", path, then, writes(status))
		}
		c.condition = old
	}

	// While the first is between its look and its change.
	if first == 400 || first == 428 {
		return wrong // nobody is called
	}
	path += "/raced"
	s.add(t, path, c.at)
	g := &gate{looked: make(chan struct{}), on: make(chan struct{})}
	one := make(chan *httptest.ResponseRecorder)
	go func() { one <- send(path, g) }()
	<-g.looked
	if c.keyed {
		check("duplicate", send(path, nil), 409, false)
		state("duplicate", path, c.at, 0)
		close(g.on)
		check("raced first", <-one, first, false)
		state("raced first", path, then, writes(first))
		return wrong
	}
	// The second overtakes the first, whose look is old by then.
	check("overtakes", send(path, nil), first, false)
	state("overtakes", path, then, writes(first))
	close(g.on)
	check("overtaken", <-one, second, false)
	state("overtaken", path, last, writes(first)+writes(second))
	return wrong
}

// Two editors with one ETag, and a hundred.
func TestEditorsWithOneTag(t *testing.T) {
	t.Parallel()
	for _, kind := range thingStores {
		for _, keyed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s keyed=%t", kind, keyed), func(t *testing.T) {
				t.Parallel()
				s := newThings(t, kind)
				h := s.protect(conditional.New(conditional.Config{})(s.handler()))
				for i, editors := range []int{2, 2, 2, 100} {
					id := fmt.Sprintf("/things/%d", i)
					s.add(t, id, conditional.State{Version: 7})
					got := atOnce(h, editors, func(n int) *http.Request {
						r := httptest.NewRequest(http.MethodPatch, id, nil)
						r.Header.Set("If-Match", `"7"`)
						if keyed {
							r.Header.Set("Idempotency-Key", fmt.Sprint(n))
						}
						return r
					})
					if got["200 "] != 1 || got["412 problem"] != editors-1 {
						t.Errorf("%d editors: %v", editors, got)
					}
					if at, writes := s.find(t, id); at.Version != 8 || writes != 1 {
						t.Errorf("version %d after %d writes", at.Version, writes)
					}
				}
			})
		}
	}
}

// A hundred approvals make one transition, and all have the same answer.
func TestApprovals(t *testing.T) {
	t.Parallel()
	for _, kind := range thingStores {
		for _, how := range []string{"", "own keys", "one key", "stale If-Match"} {
			t.Run(kind+" "+how, func(t *testing.T) {
				t.Parallel()
				s := newThings(t, kind)
				h := s.protect(conditional.New(conditional.Config{})(s.handler()))
				const id = "/things/1"
				s.add(t, id, conditional.State{Version: 7})
				got := atOnce(h, 100, func(n int) *http.Request {
					r := httptest.NewRequest(http.MethodPost, id, nil)
					switch how {
					case "own keys":
						r.Header.Set("Idempotency-Key", fmt.Sprint(n))
					case "one key":
						r.Header.Set("Idempotency-Key", "k")
						r.Header.Set("Prefer", "wait=30")
					case "stale If-Match":
						r.Header.Set("If-Match", `"7"`)
					}
					return r
				})
				inProgress := 0
				if how == "one key" {
					inProgress = got["409 problem"] // more than may wait
				}
				if same := got[`200 the thing is approved, version "8"`]; same+inProgress != 100 || same == 0 {
					t.Errorf("answers: %v", got)
				}
				if at, writes := s.find(t, id); at.Version != 8 || writes != 1 {
					t.Errorf("version %d after %d writes", at.Version, writes)
				}
			})
		}
	}
}

// atOnce sends n requests at once and counts equal answers.
func atOnce(h http.Handler, n int, request func(n int) *http.Request) map[string]int {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		got   = map[string]int{}
		start = make(chan struct{})
	)
	for i := range n {
		r := request(i)
		wg.Go(func() {
			<-start
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			answer := fmt.Sprintf("%d %s", w.Code, w.Body)
			if w.Body.Len() > 0 {
				answer += ", version " + w.Header().Get("Etag")
			}
			if w.Code >= 400 {
				answer = fmt.Sprintf("%d problem", w.Code)
			}
			mu.Lock()
			got[answer]++
			mu.Unlock()
		})
	}
	close(start)
	wg.Wait()
	return got
}

// A handler that changes something and forgets the precondition is not believed;
// in a transaction, what it changed is undone, and the key is free.
func TestForgottenPreconditionIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite-transactional", "postgres-transactional"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newThings(t, kind)
			const id = "/things/1"
			s.add(t, id, conditional.State{Version: 7})
			h := s.protect(conditional.New(conditional.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := s.exec(r.Context(), "UPDATE things SET version = 8, writes = 1 WHERE id = $1", id); err != nil {
					t.Error(err)
				}
			})))
			for range 2 {
				r := httptest.NewRequest(http.MethodPatch, id, nil)
				r.Header.Set("If-Match", `"6"`)
				r.Header.Set("Idempotency-Key", "k")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if at, writes := s.find(t, id); w.Code != 500 || w.Header().Get("Idempotency-Replayed") != "" || at.Version != 7 || writes != 0 {
					t.Errorf("%d; version %d after %d writes", w.Code, at.Version, writes)
				}
			}
		})
	}
}

// What the process that is killed does, and when.
const (
	beforeCommit = "before the commit"
	beforeAnswer = "before the answer"
)

// A process is killed with a change half made, twice, and then once more with the
// change made and nobody told. The retry gets the answer to the first, and not
// that its precondition does not hold any more.
func TestKilledBetweenChangeAndAnswer(t *testing.T) {
	if child := os.Getenv(thingsVariable); child != "" {
		kind, rest, _ := strings.Cut(child, "|")
		point, at, _ := strings.Cut(rest, "|")
		s := openThings(t, kind, at)
		handler := s.handler()
		h := s.protect(conditional.New(conditional.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
			if point == beforeCommit {
				os.Exit(3)
			}
		})))
		if w := patchOnce(h); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		os.Exit(3)
	}
	t.Parallel()
	for _, kind := range []string{"sqlite-transactional", "postgres-transactional"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newThings(t, kind)
			s.add(t, "/things/1", conditional.State{Version: 7})
			for _, point := range []string{beforeCommit, beforeCommit, beforeAnswer} {
				child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledBetweenChangeAndAnswer$")
				child.Env = append(os.Environ(), thingsVariable+"="+kind+"|"+point+"|"+s.url)
				if out, err := child.CombinedOutput(); child.ProcessState.ExitCode() != 3 {
					t.Fatalf("%s: %v\n%s", point, err, out)
				}
				want := conditional.State{Version: 7}
				if point == beforeAnswer {
					want.Version = 8
				}
				if at, _ := s.find(t, "/things/1"); at != want {
					t.Errorf("killed %s: %+v", point, at)
				}
			}
			w := patchOnce(s.protect(conditional.New(conditional.Config{})(s.handler())))
			if w.Code != http.StatusOK || w.Header().Get("Etag") != `"8"` || w.Header().Get("Idempotency-Replayed") != "true" {
				t.Errorf("the retry: %d %v %s", w.Code, w.Header(), w.Body)
			}
			if at, writes := s.find(t, "/things/1"); at.Version != 8 || writes != 1 {
				t.Errorf("version %d after %d writes", at.Version, writes)
			}
		})
	}
}

// patchOnce sends a change to version 7 with a key.
func patchOnce(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPatch, "/things/1", nil)
	r.Header.Set("If-Match", `"7"`)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Prefer", "wait=30") // a server may learn late that its client has died
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// thingsVariable has the test binary be another process, with the database it names.
const thingsVariable = "SEMEL_MATRIX_THINGS"

// Of many processes on one database, one makes each transition and one each change
// that depends on a version; of changes that depend on none, none gets lost.
func TestManyProcessesChangeThings(t *testing.T) {
	const processes, callers = 4, 8
	if url := os.Getenv(thingsVariable); url != "" {
		d, err := openRows(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.close() }()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() { changeThings(t, d, fmt.Sprintf("<%d.%d>", os.Getpid(), i)) })
		}
		wg.Wait()
		return
	}
	t.Parallel()
	for _, kind := range []string{"sqlite-leased", "postgres-leased"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newThings(t, kind)
			for _, id := range []string{"approved", "edited", "appended"} {
				s.add(t, id, conditional.State{Version: 1})
			}
			var (
				wg  sync.WaitGroup
				mu  sync.Mutex
				all strings.Builder
			)
			for range processes {
				wg.Go(func() {
					child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestManyProcessesChangeThings$", "-test.v")
					child.Env = append(os.Environ(), thingsVariable+"="+s.url)
					out, err := child.CombinedOutput()
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("a process failed: %v\n%s", err, out)
					}
					all.Write(out)
				})
			}
			wg.Wait()
			count := func(what string) int { return strings.Count(all.String(), what+"\n") }
			const n = processes * callers
			if count("moved") != 1 || count("repeated") != n-1 {
				t.Errorf("%d moved and %d repeated; want 1 and %d", count("moved"), count("repeated"), n-1)
			}
			if count("edited") != 1 || count("failed") != n-1 {
				t.Errorf("%d edited and %d failed; want 1 and %d", count("edited"), count("failed"), n-1)
			}
			for id, version := range map[string]int64{"approved": 2, "edited": 2, "appended": n + 1} {
				if at, writes := s.find(t, id); at.Version != version || int64(writes) != version-1 {
					t.Errorf("%s: version %d after %d writes", id, at.Version, writes)
				}
			}
			var text string
			if _, err := s.row(t.Context(), "SELECT text FROM things WHERE id = 'appended'", nil, &text); err != nil {
				t.Fatal(err)
			}
			marks := map[string]bool{}
			for _, mark := range regexp.MustCompile(`<\d+\.\d+>`).FindAllString(text, -1) {
				marks[mark] = true
			}
			if len(marks) != n {
				t.Errorf("%d changes are there of %d", len(marks), n)
			}
		})
	}
}

func changeThings(t *testing.T, d *rows, mark string) {
	ctx := t.Context()
	switch m, err := approvals.Apply(ctx, "approve", d.subject("approved")); {
	case err != nil || m.State != "approved" || m.Version != 2:
		t.Errorf("%+v: %v", m, err)
	case m.Repeated:
		fmt.Println("repeated")
	default:
		fmt.Println("moved")
	}
	_, err := conditional.Apply(conditional.Expect(ctx, 1), d.change("edited", func(string) string { return mark }, false))
	if _, failed := errors.AsType[*conditional.FailedError](err); failed {
		fmt.Println("failed")
	} else if err != nil {
		t.Error(err)
	} else {
		fmt.Println("edited")
	}
	for {
		_, err := conditional.Apply(ctx, d.change("appended", func(old string) string { return old + mark }, false))
		if err == nil {
			return
		}
		if !errors.Is(err, conditional.ErrContended) {
			t.Error(err)
			return
		}
	}
}

// A version does not come back: what was read before a deletion cannot overwrite
// what was created in its place.
func TestVersionsOutliveDeletion(t *testing.T) {
	t.Parallel()
	for _, kind := range thingStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newThings(t, kind)
			h := conditional.New(conditional.Config{})(s.handler())
			version := ""
			for i, step := range []struct {
				method, condition string
				status            int
				tag               string
			}{
				{"PUT", "If-None-Match: *", 201, `"1"`},
				{"DELETE", `If-Match: "1"`, 200, `"2"`},
				{"PUT", `If-Match: "1"`, 412, ""},
				{"PUT", "If-None-Match: *", 201, `"3"`},
				{"PATCH", `If-Match: "1"`, 412, ""}, // by who read the first
				{"DELETE", `If-Match: "1"`, 412, ""},
				{"PATCH", `If-Match: "3"`, 200, `"4"`},
			} {
				r := httptest.NewRequest(step.method, "/things/1", nil)
				name, value, _ := strings.Cut(step.condition, ": ")
				r.Header.Set(name, value)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != step.status || w.Header().Get("Etag") != step.tag {
					t.Errorf("step %d: %d %s %s; the version before was %s", i, w.Code, w.Header().Get("Etag"), w.Body, version)
				}
				version = w.Header().Get("Etag")
			}
		})
	}
}

// The two lines that a row lock with a bounded wait takes. In SQLite it is the
// transaction itself, by BEGIN IMMEDIATE and busy_timeout.
func TestRowLockWaitsNoLongerThanTold(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	at := testenv.Postgres(t)
	d, err := openRows(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.close() }()
	for _, q := range []string{createThings, "INSERT INTO things (id, version) VALUES ('1', 1), ('2', 1)"} {
		if _, err := d.exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(id string) (pgx.Tx, error) {
		c, err := pgx.Connect(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '50ms'"); err != nil {
			t.Fatal(err)
		}
		var version int64
		return tx, tx.QueryRow(ctx, "SELECT version FROM things WHERE id = $1 FOR UPDATE", id).Scan(&version)
	}
	locked := func(err error) bool {
		e, ok := errors.AsType[interface {
			error
			SQLState() string
		}](err)
		return ok && e.SQLState() == "55P03"
	}
	owner, err := lock("1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock("1"); !locked(err) {
		t.Errorf("a locked row: %v", err)
	}
	if _, err := lock("2"); err != nil {
		t.Errorf("another row: %v", err)
	}
	if err := owner.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := lock("1"); err != nil {
		t.Errorf("a row that is free again: %v", err)
	}
}
