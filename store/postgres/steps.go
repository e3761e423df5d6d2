package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/steps"
)

// Steps is the journal of operations in a store's schema. It implements steps.Store.
// The transaction of a local step is the one that Tx and SQLTx return and that
// Enqueue uses. In both modes it has the store's Isolation, LockTimeout, IdleTimeout
// and PeerTimeout. Operations need leased claims, of this store or another. The
// clock is the server's.
type Steps struct {
	store *Store
	sql   stepsStatements
}

var _ steps.Store = (*Steps)(nil)

type stepsStatements struct{ open, find, steps, put, list, mark, decide, resolve, note, sweep string }

// Steps returns the journal in the store's schema.
func (s *Store) Steps() *Steps {
	q := func(sql string) string { return in(s.config.Schema, sql) }
	return &Steps{s, stepsStatements{
		open: q(sqlOpenJournal), find: q(sqlFindJournal), steps: q(sqlSteps), put: q(sqlPutStep),
		list: q(sqlListJournals), mark: q(sqlMarkJournal), decide: q(sqlDecideJournal), resolve: q(sqlResolveStep), note: q(sqlNoteDecision), sweep: q(sqlSweepJournals),
	}}
}

const (
	journalColumns = `number, tenant, actor, operation, key, fence, scheme, sum, input, phase, attempts, cause, changed`
	sqlOpenJournal = `
		INSERT INTO {s}.journal AS j (tenant, actor, operation, key, fence, scheme, sum, input, phase, due, changed)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'open', clock_timestamp() + $9::interval, clock_timestamp())
		ON CONFLICT (key, operation, actor, tenant) DO UPDATE SET fence = excluded.fence, phase = 'open', due = excluded.due, changed = excluded.changed
		WHERE j.fence <= excluded.fence
		RETURNING ` + journalColumns
	sqlFindJournal = `SELECT ` + journalColumns + ` FROM {s}.journal WHERE tenant = $1 AND actor = $2 AND operation = $3 AND key = $4`
	sqlSteps       = `SELECT position, name, input, state, result, cause, at, clock_timestamp() - started FROM {s}.journal_step WHERE journal = $1 ORDER BY position`
	// sqlPutStep locks the operation's row: a statement that raises its fence
	// waits for this transaction, and an owner whose fence was overtaken finds no
	// row.
	sqlPutStep = `
		INSERT INTO {s}.journal_step AS s (journal, position, name, input, state, result, cause)
		SELECT number, $3, $4, $5, $6, $7, $8 FROM {s}.journal WHERE number = $1 AND fence = $2 FOR SHARE
		ON CONFLICT (journal, position) DO UPDATE SET state = excluded.state, result = excluded.result, cause = excluded.cause,
			started = CASE WHEN excluded.state = 'started' THEN excluded.started ELSE s.started END
		WHERE s.state NOT IN ('done', 'failed') AND s.name = excluded.name AND s.input = excluded.input`
	sqlListJournals = `
		SELECT ` + journalColumns + ` FROM {s}.journal
		WHERE phase = ANY ($1) AND (NOT $2 OR due <= (SELECT clock_timestamp())) AND number > $3 AND (cardinality($4::text[]) = 0 OR operation = ANY ($4))
			AND ($5 = '' OR key = $5)
		ORDER BY number LIMIT $6`
	sqlMarkJournal = `
		UPDATE {s}.journal SET phase = $3, attempts = $4, cause = $5, due = clock_timestamp() + $6::interval, changed = clock_timestamp()
		WHERE number = $1 AND fence = $2`
	sqlDecideJournal = `
		UPDATE {s}.journal SET phase = 'open', attempts = 0, cause = '', due = clock_timestamp(), changed = clock_timestamp()
		WHERE number = $1 AND fence = $2 AND ($3 OR phase = 'held')`
	sqlResolveStep  = `UPDATE {s}.journal_step SET state = $3, result = $4, cause = $5 WHERE journal = $1 AND name = $2 AND state = 'unknown'`
	sqlNoteDecision = `
		INSERT INTO {s}.trail (at, kind, fence, tenant, actor, operation, key, request_id, label, cause)
		VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7, $8, $9)`
	sqlSweepJournals = `
		DELETE FROM {s}.journal WHERE number = ANY (ARRAY(
			SELECT number FROM {s}.journal WHERE phase = 'finished' AND due < (SELECT clock_timestamp()) - $2::interval
			ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED))`
)

func scanOperation(row pgx.CollectableRow) (o steps.Operation, err error) {
	var sum []byte
	err = row.Scan(&o.Number, &o.Identity.Tenant, &o.Identity.Actor, &o.Identity.Operation, &o.Identity.Key, &o.Fence,
		&o.Fingerprint.Scheme, &sum, &o.Input, &o.Phase, &o.Attempts, &o.Cause, &o.Changed)
	copy(o.Fingerprint.Sum[:], sum)
	return o, err
}

// operation reads what a statement returns, with its steps. Nobody else writes to them
// once their fence has been raised.
func (j *Steps) operation(ctx context.Context, missing error, query string, args ...any) (steps.Operation, error) {
	o, err := again(ctx, j.store, func() (o steps.Operation, err error) {
		err = j.store.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			rows, _ := c.Query(ctx, query, args...) // its error is told by CollectExactlyOneRow
			if o, err = pgx.CollectExactlyOneRow(rows, scanOperation); err != nil {
				return err
			}
			rows, _ = c.Query(ctx, j.sql.steps, o.Number)
			o.Steps, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s steps.Step, err error) {
				err = row.Scan(&s.Position, &s.Name, &s.Input, &s.State, &s.Result, &s.Cause, &s.At, &s.Age)
				return s, err
			})
			return err
		})
		return o, err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return o, missing
	case err != nil:
		return o, fmt.Errorf("postgres: steps: %w", err)
	}
	return o, nil
}

// Open implements steps.Store.
func (j *Steps) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	id := o.Identity
	return j.operation(ctx, steps.ErrStale, j.sql.open, id.Tenant, id.Actor, id.Operation, id.Key, o.Fence,
		o.Fingerprint.Scheme, o.Fingerprint.Sum[:], storekit.Blob(o.Input), whole(o.Due))
}

// Find implements steps.Store.
func (j *Steps) Find(ctx context.Context, id semel.Identity) (steps.Operation, error) {
	o, err := j.operation(ctx, steps.ErrNotFound, j.sql.find, id.Tenant, id.Actor, id.Operation, id.Key)
	if err == nil {
		o.Decisions, err = steps.DecisionsIn(ctx, j.store, id)
	}
	return o, err
}

func putArgs(number, fence uint64, s steps.Step) []any {
	return []any{number, fence, s.Position, s.Name, storekit.Blob(s.Input), string(s.State), storekit.Blob(s.Result), text(s.Cause)}
}

// change executes a statement that changes one row.
func (j *Steps) change(ctx context.Context, query string, args ...any) error {
	n, err := again(ctx, j.store, func() (int64, error) {
		tag, err := j.store.pool.Exec(ctx, query, args...)
		return tag.RowsAffected(), err
	})
	switch {
	case err != nil:
		return fmt.Errorf("postgres: steps: %w", err)
	case n == 0:
		return steps.ErrStale
	}
	return nil
}

// Put implements steps.Store.
func (j *Steps) Put(ctx context.Context, number, fence uint64, s steps.Step) error {
	return j.change(ctx, j.sql.put, putArgs(number, fence, s)...)
}

// Transact implements steps.Store.
func (j *Steps) Transact(ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
	c, err := again(ctx, j.store, func() (*txClaim, error) {
		c, _, err := j.store.beginWork(ctx, "SELECT ''")
		if err != nil {
			return nil, err
		}
		return c, nil
	})
	if err != nil {
		return fmt.Errorf("postgres: steps: %w", err)
	}
	return c.transact(ctx, func(ctx context.Context) (err error) {
		s.State, s.Cause = steps.StateDone, ""
		if s.Result, err = work(ctx); err != nil {
			return err
		}
		tx, _ := Tx(ctx)
		tag, err := tx.Exec(ctx, j.sql.put, putArgs(number, fence, s)...)
		if err == nil && tag.RowsAffected() == 0 {
			err = steps.ErrStale
		}
		return err
	}).As(steps.ErrRolledBack, steps.ErrInDoubt)
}

// List implements steps.Store.
func (j *Steps) List(ctx context.Context, f steps.Filter) ([]steps.Operation, error) {
	names, phases := append([]string{}, f.Operations...), f.Phases
	if len(phases) == 0 {
		phases = []steps.Phase{steps.PhaseOpen, steps.PhaseHeld, steps.PhaseFinished}
	}
	all, err := again(ctx, j.store, func() ([]steps.Operation, error) {
		rows, _ := j.store.pool.Query(ctx, j.sql.list, phases, f.Due, f.After, names, f.Key, f.Page()) // its error is told by CollectRows
		return pgx.CollectRows(rows, scanOperation)
	})
	if err != nil {
		return nil, fmt.Errorf("postgres: steps: %w", err)
	}
	return all, nil
}

// Mark implements steps.Store.
func (j *Steps) Mark(ctx context.Context, m steps.Mark) error {
	return j.change(ctx, j.sql.mark, m.Number, m.Fence, string(m.Phase), m.Attempts, text(m.Cause), whole(m.Due))
}

// Decide implements steps.Store.
func (j *Steps) Decide(ctx context.Context, d steps.Decision) error {
	e := d.Entry
	statements := []struct {
		sql  string
		args []any
	}{
		{j.sql.decide, []any{d.Number, d.Fence, d.Step.Name != ""}},
		{j.sql.resolve, []any{d.Number, d.Step.Name, string(d.Step.State), storekit.Blob(d.Step.Result), text(d.Step.Cause)}},
		{j.sql.note, []any{string(e.Kind), d.Fence, e.Tenant, e.Actor, e.Operation, e.Key, text(e.RequestID), text(e.Label), text(e.Cause)}},
	}
	if d.Step.Name == "" {
		statements = slices.Delete(statements, 1, 2)
	}
	_, err := again(ctx, j.store, func() (none struct{}, err error) {
		return none, pgx.BeginTxFunc(ctx, j.store.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			for _, s := range statements {
				tag, err := tx.Exec(ctx, s.sql, s.args...)
				if err == nil && tag.RowsAffected() == 0 {
					err = steps.ErrStale
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, steps.ErrStale) {
		err = fmt.Errorf("postgres: steps: %w", err)
	}
	return err
}

// Sweep implements steps.Store.
func (j *Steps) Sweep(ctx context.Context, retention time.Duration, limit int) (removed int, err error) {
	for more := true; more && removed < limit; {
		rows := min(sweepRows, limit-removed)
		n, err := again(ctx, j.store, func() (int, error) {
			tag, err := j.store.pool.Exec(ctx, j.sql.sweep, rows, whole(retention))
			return int(tag.RowsAffected()), err
		})
		if err != nil {
			return removed, fmt.Errorf("postgres: steps: %w", err)
		}
		removed += n
		more = n > 0
	}
	return removed, nil
}
