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
func (l *Lab) homemade(s Switches, next http.Handler) http.Handler {
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

		// What has begun is brought to its end, also if the client goes away: else a key
		// can be taken for work that is never done.
		r = r.WithContext(context.WithoutCancel(r.Context()))
		name := key
		if s.Scope {
			name = strings.Join([]string{a.Tenant, a.Actor, a.Operation, key}, "\x1f")
		}
		// DEFECT(scope), otherwise: the key alone is the name. Somebody else with the same
		// key, or the same client in another operation, is answered with this
		// request's answer. Lesson: a key is its caller's.

		sum := sha256.Sum256(body)
		fingerprint := hex.EncodeToString(sum[:])

		used := false
		if s.InProgress {
			// One statement takes the key or finds that it is taken.
			used, err = l.takeKey(r.Context(), name, fingerprint)
		} else {
			// DEFECT(in_progress): look first, act later. Between the two everybody else looks as
			// well. Lesson: ask and take in one step.
			used, err = l.hasKey(r.Context(), name)
		}
		if err != nil {
			problem(w, http.StatusServiceUnavailable, "The keys cannot be read; nothing was done. Try again with the same key.")
			return
		}
		if used {
			l.answerAgain(w, r, s, name, fingerprint)
			return
		}
		a.note("the key is new")

		c := &capture{header: http.Header{}, status: http.StatusOK}
		next.ServeHTTP(c, r)

		if c.status >= 500 && !s.Failures {
			// DEFECT(failures): the key of what failed is free again, as if nothing had happened.
			// The effect may have been committed before the failure. Lesson: an error is
			// an answer too.
			err = l.dropKey(r.Context(), name)
		} else {
			err = l.keepAnswer(r.Context(), name, fingerprint, c)
		}
		if err != nil {
			problem(w, http.StatusInternalServerError, "The answer cannot be kept. It may have been done.")
			return
		}
		c.send(w)
	})
}

// answerAgain answers a request whose key was used before.
func (l *Lab) answerAgain(w http.ResponseWriter, r *http.Request, s Switches, name, fingerprint string) {
	a := attemptOf(r.Context())
	first, status, answer, err := l.findKey(r.Context(), name)
	switch {
	case err != nil:
		problem(w, http.StatusServiceUnavailable, "The keys cannot be read; nothing was done. Try again with the same key.")
	case s.Fingerprint && first != "" && first != fingerprint:
		a.note("the key was used for another body")
		problem(w, http.StatusUnprocessableEntity, "This key was used for another request.")
	case !status.Valid:
		a.note("the first request is being worked on")
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusConflict, "A request with this key is being worked on.")
	case !s.Replay:
		// DEFECT(replay): whoever lost the answer never gets it. Lesson: keep what you said.
		a.note("the key is used up")
		problem(w, http.StatusConflict, "This key was used before.")
	default:
		a.note("the answer is repeated")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Idempotency-Replayed", "true")
		w.WriteHeader(int(status.Int64))
		_, _ = w.Write(answer)
	}
}

func (l *Lab) takeKey(ctx context.Context, name, fingerprint string) (used bool, err error) {
	done, err := l.db.ExecContext(ctx, "INSERT INTO used_keys (name, fingerprint) VALUES (?, ?) ON CONFLICT DO NOTHING", name, fingerprint)
	if err != nil {
		return false, err
	}
	n, err := done.RowsAffected()
	return n == 0, err
}

func (l *Lab) hasKey(ctx context.Context, name string) (used bool, err error) {
	err = l.db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM used_keys WHERE name = ?", name).Scan(&used)
	return used, err
}

func (l *Lab) findKey(ctx context.Context, name string) (fingerprint string, status sql.NullInt64, answer []byte, err error) {
	err = l.db.QueryRowContext(ctx, "SELECT fingerprint, status, answer FROM used_keys WHERE name = ?", name).Scan(&fingerprint, &status, &answer)
	if errors.Is(err, sql.ErrNoRows) { // it has failed meanwhile: as if it were still being worked on
		return fingerprint, status, nil, nil
	}
	return fingerprint, status, answer, err
}

func (l *Lab) dropKey(ctx context.Context, name string) error {
	_, err := l.db.ExecContext(ctx, "DELETE FROM used_keys WHERE name = ?", name)
	return err
}

func (l *Lab) keepAnswer(ctx context.Context, name, fingerprint string, c *capture) error {
	// The last one wins, where more than one got this far.
	_, err := l.db.ExecContext(ctx, "INSERT OR REPLACE INTO used_keys (name, fingerprint, status, answer) VALUES (?, ?, ?, ?)",
		name, fingerprint, c.status, c.body.Bytes())
	return err
}

// capture holds an answer back.
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
