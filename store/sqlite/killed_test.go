package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

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
	t.Parallel()
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
	t.Parallel()
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
