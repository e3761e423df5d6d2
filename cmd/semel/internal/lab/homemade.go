package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"
)

// This file is what a service writes that protects itself by hand: a table of the
// keys that were used. It can be read in a minute, and each switch that is off
// leaves away what one team or another has left away.

// homemade protects next with the defences of s, as far as they are on.
func (p *app) homemade(s Switches, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := attemptOf(r.Context())
		key := a.Key
		if key == "" {
			if s.Key == KeyRequired {
				problem(w, http.StatusBadRequest, "Send an Idempotency-Key, and the same one when you try again.")
				return
			}
			// Lesson: where the key is optional, those that need it most do not send one.
			next.ServeHTTP(w, r)
			return
		}
		body, err := readBody(r)
		if err != nil {
			problem(w, http.StatusBadRequest, "The body cannot be read.")
			return
		}

		// What has begun is brought to its end, even if the client goes away: else a key
		// can be taken for work that is never done.
		r = r.WithContext(context.WithoutCancel(r.Context()))
		name, asked := key, "now"
		if a.Path == "job" {
			asked = "later"
		}
		if s.Scope {
			name = strings.Join([]string{a.Tenant, a.Actor, a.Operation, asked, key}, "\x1f")
		}
		// DEFECT(scope), otherwise: the key alone is the name. Somebody else with the same
		// key, or the same client in another operation, is answered with this
		// request's response. Lesson: a key is its caller's.

		sum := sha256.Sum256(body)
		fingerprint := hex.EncodeToString(sum[:])

		t := p.times(s, a)
		used := false
		if s.InProgress {
			// One statement takes the key or finds that it is taken.
			used, err = p.takeKey(r.Context(), name, fingerprint, t)
		} else {
			// DEFECT(in_progress): look first, act later. Between the two everybody else looks as
			// well. Lesson: ask and take in one step.
			used, err = p.hasKey(r.Context(), name, t)
		}
		if err != nil {
			problem(w, http.StatusServiceUnavailable, "The keys cannot be read; nothing was done. Try again with the same key.")
			return
		}
		if used {
			p.answerAgain(w, r, s, name, fingerprint)
			return
		}
		a.Decision = decidedExecuted
		a.note("the key is new")

		c := &capture{header: http.Header{}, status: http.StatusOK}
		next.ServeHTTP(c, r)

		if c.status >= 500 && !s.Failures {
			// DEFECT(failures): the key of what failed is free again, as if nothing had happened.
			// The effect may have been committed before the failure. Lesson: an error is
			// a response too.
			err = p.dropKey(r.Context(), name)
		} else {
			err = p.keepAnswer(r.Context(), name, fingerprint, c, t)
		}
		if err != nil {
			problem(w, http.StatusInternalServerError, "The response cannot be kept. It may have been done.")
			return
		}
		c.send(w)
	})
}

// answerAgain answers a request whose key was used before.
func (p *app) answerAgain(w http.ResponseWriter, r *http.Request, s Switches, name, fingerprint string) {
	a := attemptOf(r.Context())
	first, status, recorded, err := p.findKey(r.Context(), name)
	switch {
	case err != nil:
		problem(w, http.StatusServiceUnavailable, "The keys cannot be read; nothing was done. Try again with the same key.")
	case s.Fingerprint && first != "" && first != fingerprint:
		a.Decision = decidedMismatch
		a.note("the key was used for another body")
		problem(w, http.StatusUnprocessableEntity, "This key was used for another request.")
	case !status.Valid:
		a.Decision = decidedInProgress
		a.note("the first request is being worked on")
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusConflict, "A request with this key is being worked on.")
	case !s.Replay:
		// DEFECT(replay): whoever lost the response never gets it. Lesson: keep what you said.
		a.Decision = decidedUsedUp
		a.note("the key is used up")
		problem(w, http.StatusConflict, "This key was used before.")
	default:
		a.Decision = decidedReplayed
		a.note("the response is repeated")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Idempotency-Replayed", "true")
		w.WriteHeader(int(status.Int64))
		_, _ = w.Write(recorded)
	}
}

// times are when what is written now ends, in Unix milliseconds; 0 for never.
type times struct{ now, lock, key int64 }

// lockFor is how long the lock on a key holds, where the switch "lease" is off.
const lockFor = 200 * time.Millisecond

func (p *app) times(s Switches, a *Attempt) times {
	now := time.Now()
	if s.ClockSkew && !p.outside.First("instance", *a) {
		now = now.Add(25 * time.Hour)
		a.note("handled by the instance with the wrong clock")
	}
	if s.Lease {
		// Nothing ends by a clock: so the lock of a process that has died stays for ever.
		return times{now: now.UnixMilli()}
	}
	// DEFECT(lease): the lock ends by this instance's clock, whether the work has ended or not;
	// nobody renews it, and who was late writes its response all the same. The key
	// ends a day from now, and another instance asks its own clock when that is.
	// Lesson: renew the lock while you work, fence what you write, and ask one clock.
	return times{now.UnixMilli(), now.Add(lockFor).UnixMilli(), now.Add(24 * time.Hour).UnixMilli()}
}

func (p *app) takeKey(ctx context.Context, name, fingerprint string, t times) (used bool, err error) {
	done, err := p.db.ExecContext(ctx, `INSERT INTO used_keys (name, fingerprint, until) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint, status = NULL, answer = NULL, until = excluded.until
		WHERE used_keys.until BETWEEN 1 AND $4`, name, fingerprint, t.lock, t.now)
	if err != nil {
		return false, err
	}
	n, err := done.RowsAffected()
	return n == 0, err
}

func (p *app) hasKey(ctx context.Context, name string, t times) (used bool, err error) {
	err = p.db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM used_keys WHERE name = $1 AND until NOT BETWEEN 1 AND $2", name, t.now).Scan(&used)
	return used, err
}

func (p *app) findKey(ctx context.Context, name string) (fingerprint string, status sql.NullInt64, recorded []byte, err error) {
	err = p.db.QueryRowContext(ctx, "SELECT fingerprint, status, answer FROM used_keys WHERE name = $1", name).Scan(&fingerprint, &status, &recorded)
	if errors.Is(err, sql.ErrNoRows) { // it has failed meanwhile: as if it were still being worked on
		return fingerprint, status, nil, nil
	}
	return fingerprint, status, recorded, err
}

func (p *app) dropKey(ctx context.Context, name string) error {
	_, err := p.db.ExecContext(ctx, "DELETE FROM used_keys WHERE name = $1", name)
	return err
}

func (p *app) keepAnswer(ctx context.Context, name, fingerprint string, c *capture, t times) error {
	// The last one wins, where more than one got this far.
	_, err := p.db.ExecContext(ctx, `INSERT INTO used_keys (name, fingerprint, status, answer, until) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint, status = excluded.status, answer = excluded.answer, until = excluded.until`,
		name, fingerprint, c.status, c.body.Bytes(), t.key)
	return err
}

// capture holds a response back.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (c *capture) Header() http.Header         { return c.header }
func (c *capture) WriteHeader(status int)      { c.status = status }
func (c *capture) Write(p []byte) (int, error) { return c.body.Write(p) }

func (c *capture) send(w http.ResponseWriter) {
	for name, values := range c.header {
		w.Header()[name] = values
	}
	w.WriteHeader(c.status)
	_, _ = w.Write(c.body.Bytes())
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
