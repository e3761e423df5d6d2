package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"strconv"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/steps"
)

// Steps is the journal of operations in a store's file. It implements steps.Store. The
// transaction of a local step is the one that Tx returns and that Enqueue uses. It holds
// the write lock of the whole file, as a transactional claim does. Operations need
// leased claims. The clock is the host's.
type Steps struct{ store *Store }

var _ steps.Store = (*Steps)(nil)

// Steps returns the journal in the store's file.
func (s *Store) Steps() *Steps { return &Steps{s} }

const (
	upsertJournal = `
		INSERT INTO journal (tenant, actor, operation, key, fence, scheme, sum, input, phase, due, changed)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'open', ?9, ?10)
		ON CONFLICT (key, operation, actor, tenant) DO UPDATE SET fence = ?5, phase = 'open', due = ?9, changed = ?10
		WHERE fence <= ?5`
	journalColumns = "number, tenant, actor, operation, key, fence, scheme, sum, input, phase, attempts, cause, changed"
	selectJournal  = "SELECT " + journalColumns + " FROM journal WHERE key = ? AND operation = ? AND actor = ? AND tenant = ?"
	selectSteps    = "SELECT position, name, input, state, result, cause, at, started FROM journal_step WHERE journal = ? ORDER BY position"
	upsertStep     = `
		INSERT INTO journal_step (journal, position, name, input, state, result, cause, at, started)
		SELECT number, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9 FROM journal WHERE number = ?1 AND fence = ?2
		ON CONFLICT (journal, position) DO UPDATE SET state = ?6, result = ?7, cause = ?8, started = iif(?6 = 'started', ?9, started)
		WHERE state NOT IN ('done', 'failed') AND name = ?4 AND input = ?5`
	markJournal = `
		UPDATE journal SET phase = ?3, attempts = ?4, cause = ?5, due = ?6, changed = ?7 WHERE number = ?1 AND fence = ?2`
	selectDecidable = "SELECT phase, (SELECT position FROM journal_step WHERE journal = number AND name = ? AND state = 'unknown') FROM journal WHERE number = ? AND fence = ?"
	decideJournal   = "UPDATE journal SET phase = 'open', attempts = 0, cause = '', due = ?2, changed = ?2 WHERE number = ?1"
	resolveStep     = "UPDATE journal_step SET state = ?, result = ?, cause = ? WHERE journal = ? AND position = ?"
	selectFinished  = "SELECT number FROM journal WHERE phase = 'finished' AND due < ? ORDER BY due LIMIT 0 + ?"
	deleteJournals  = "DELETE FROM journal WHERE number IN (SELECT value FROM json_each(?))"
	deleteStepsWith = "DELETE FROM journal_step WHERE journal IN (SELECT value FROM json_each(?))"
)

// operation reads journalColumns.
func (r *row) operation() (o steps.Operation) {
	o.Number = uint64(r.int())
	o.Identity.Tenant, o.Identity.Actor, o.Identity.Operation, o.Identity.Key = r.text(), r.text(), r.text(), r.text()
	o.Fence = uint64(r.int())
	o.Fingerprint.Scheme = r.text()
	copy(o.Fingerprint.Sum[:], r.bytes())
	o.Input, o.Phase, o.Attempts, o.Cause, o.Changed = r.blob(), steps.Phase(r.text()), int(r.int()), r.text(), time.UnixMicro(r.int())
	return o
}

func (c *conn) journal(id semel.Identity, now int64) (o steps.Operation, err error) {
	err = c.query(selectJournal, func(r *row) { o = r.operation() }, id.Key, id.Operation, id.Actor, id.Tenant)
	if err == nil && o.Number == 0 {
		err = steps.ErrNotFound
	}
	if err != nil {
		return o, err
	}
	err = c.query(selectSteps, func(r *row) {
		s := steps.Step{Position: int(r.int()), Name: r.text(), Input: r.blob(), State: steps.State(r.text()), Result: r.blob(), Cause: r.text(), At: time.UnixMicro(r.int())}
		s.Age = duration(now - r.int())
		o.Steps = append(o.Steps, s)
	}, int64(o.Number))
	return o, err
}

// Open implements steps.Store.
func (j *Steps) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	return write(ctx, j.store, len(o.Input), func(t *tx) (op steps.Operation, err error) {
		id := o.Identity
		n, err := t.exec(upsertJournal, id.Tenant, id.Actor, id.Operation, id.Key, int64(o.Fence),
			o.Fingerprint.Scheme, o.Fingerprint.Sum[:], storekit.Blob(o.Input), t.now+micros(o.Due), t.now)
		if err == nil && n == 0 {
			err = steps.ErrStale
		}
		if err != nil {
			return op, err
		}
		return t.conn.journal(id, t.now)
	})
}

func stepArgs(number, fence uint64, s steps.Step, now int64) []driver.Value {
	return []driver.Value{int64(number), int64(fence), int64(s.Position), s.Name, storekit.Blob(s.Input), string(s.State), storekit.Blob(s.Result), s.Cause, now}
}

// Put implements steps.Store.
func (j *Steps) Put(ctx context.Context, number, fence uint64, s steps.Step) error {
	return j.change(ctx, len(s.Input)+len(s.Result), func(t *tx) (int64, error) {
		return t.exec(upsertStep, stepArgs(number, fence, s, t.now)...)
	})
}

// change writes what changes one row.
func (j *Steps) change(ctx context.Context, size int, fn func(t *tx) (int64, error)) error {
	n, err := write(ctx, j.store, size, fn)
	if err == nil && n == 0 {
		err = steps.ErrStale
	}
	return err
}

// Transact implements steps.Store.
func (j *Steps) Transact(ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
	var now int64
	return j.store.txs.transact(ctx, func(t *tx) (bool, error) { now = t.now; return true, nil }, func(ctx context.Context, h *handler) (err error) {
		s.State, s.Cause = steps.StateDone, ""
		if s.Result, err = work(ctx); err != nil {
			return err
		}
		var args []any
		for _, v := range stepArgs(number, fence, s, now) {
			args = append(args, v)
		}
		r, err := h.work.ExecContext(ctx, upsertStep, args...)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return steps.ErrStale
		}
		return nil
	}).As(steps.ErrRolledBack, steps.ErrInDoubt)
}

// Find implements steps.Store.
func (j *Steps) Find(ctx context.Context, id semel.Identity) (o steps.Operation, err error) {
	err = j.store.read(ctx, func(c *conn) (err error) {
		o, err = c.journal(id, time.Now().UnixMicro())
		if err == steps.ErrNotFound {
			return nil
		}
		return err
	})
	if err == nil && o.Number == 0 {
		err = steps.ErrNotFound
	}
	if err == nil {
		o.Decisions, err = steps.DecisionsIn(ctx, j.store, id)
	}
	return o, err
}

// List implements steps.Store.
func (j *Steps) List(ctx context.Context, f steps.Filter) (all []steps.Operation, err error) {
	query, args, err := journals(f)
	if err != nil {
		return nil, err
	}
	err = j.store.read(ctx, func(c *conn) error {
		all = nil
		return c.queryOnce(ctx, query, func(r *row) { all = append(all, r.operation()) }, args...)
	})
	return all, err
}

func journals(f steps.Filter) (query string, args []driver.Value, err error) {
	w := &where{}
	from := "journal"
	if len(f.Phases) > 0 {
		// Not by their numbers from the first on: few of all are in that phase, and due.
		from = "journal INDEXED BY journal_due"
		phases, err := json.Marshal(f.Phases)
		if err != nil {
			return "", nil, err
		}
		w.add("phase IN (SELECT value FROM json_each(?))", string(phases))
	}
	if f.Key != "" {
		w.add("key = ?", f.Key)
	}
	if f.Due {
		w.add("due <= ?", time.Now().UnixMicro())
	}
	w.add("number > ?", int64(f.After))
	if len(f.Operations) > 0 {
		names, err := json.Marshal(f.Operations)
		if err != nil {
			return "", nil, err
		}
		w.add("operation IN (SELECT value FROM json_each(?))", string(names))
	}
	return "SELECT " + journalColumns + " FROM " + from + " WHERE " + w.String() + " ORDER BY number LIMIT " + strconv.Itoa(f.Page()), w.args, nil
}

// Mark implements steps.Store.
func (j *Steps) Mark(ctx context.Context, m steps.Mark) error {
	return j.change(ctx, 0, func(t *tx) (int64, error) {
		return t.exec(markJournal, int64(m.Number), int64(m.Fence), string(m.Phase), int64(m.Attempts), m.Cause, t.now+micros(m.Due), t.now)
	})
}

// Decide implements steps.Store.
func (j *Steps) Decide(ctx context.Context, d steps.Decision) error {
	return j.change(ctx, 1024+len(d.Step.Result), func(t *tx) (int64, error) {
		phase, position := "", int64(-1)
		err := t.look(selectDecidable, func(r *row) {
			phase = r.text()
			if n, ok := r.number(); ok {
				position = n
			}
		}, []driver.Value{d.Step.Name, int64(d.Number), int64(d.Fence)})
		switch {
		case err != nil:
			return 0, err
		case d.Step.Name == "" && phase != string(steps.PhaseHeld), d.Step.Name != "" && position < 0:
			return 0, nil
		}
		if _, err := t.exec(decideJournal, int64(d.Number), t.now); err != nil {
			return 0, err
		}
		if d.Step.Name != "" {
			if _, err := t.exec(resolveStep, string(d.Step.State), storekit.Blob(d.Step.Result), d.Step.Cause, int64(d.Number), position); err != nil {
				return 0, err
			}
		}
		return 1, t.append(time.UnixMicro(t.now), d.Entry)
	})
}

// Sweep implements steps.Store. If it fails halfway, it returns the number
// removed so far along with the error.
func (j *Steps) Sweep(ctx context.Context, retention time.Duration, limit int) (removed int, err error) {
	for more := true; more && removed < limit; {
		rows := min(sweepRows, limit-removed)
		n, err := write(ctx, j.store, 0, func(t *tx) (n int, err error) {
			numbers := []int64{}
			if err := t.query(selectFinished, func(r *row) { numbers = append(numbers, r.int()) }, t.now-micros(retention), int64(rows)); err != nil || len(numbers) == 0 {
				return 0, err
			}
			list, err := json.Marshal(numbers)
			if err != nil {
				return 0, err
			}
			if _, err := t.exec(deleteStepsWith, string(list)); err != nil {
				return 0, err
			}
			_, err = t.exec(deleteJournals, string(list))
			return len(numbers), err
		})
		if err != nil {
			return removed, err
		}
		removed += n
		more = n > 0
	}
	return removed, nil
}
