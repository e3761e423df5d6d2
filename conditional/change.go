package conditional

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
)

var (
	// ErrNotFound reports that there is nothing to change.
	ErrNotFound = errors.New("conditional: there is no such resource")
	// ErrContended reports that others were quicker so often that Apply gave up.
	// There was no effect.
	ErrContended = errors.New("conditional: others change the resource all the time")
	// ErrNotWritten says that the statement wrote no row, though what it started from
	// is still there: a condition of its own kept it, or it names something else, or
	// the transaction reads from a snapshot and cannot see what the statement saw.
	ErrNotWritten = errors.New("conditional: no row was written, though the resource is as it was read")
)

// A FailedError says that a request's precondition does not hold. There was no
// effect.
type FailedError struct {
	Field   string // the header field that does not hold, such as If-Match
	Current State
	// Weak reports whether a tag in If-Match names the current version, but is weak,
	// which proxies make tags when they compress. See Config.AcceptWeak.
	Weak bool
}

func (e *FailedError) Error() string {
	if !e.Current.exists() {
		return "conditional: " + e.Field + " does not hold: there is no such resource"
	}
	return fmt.Sprintf("conditional: %s does not hold: the version is %d", e.Field, e.Current.Version)
}

// maxTries is how often a change is tried that depends on no particular version.
const maxTries = 10

// Change is one change to a resource, as a compare-and-set of its version. Its
// functions run one after the other, in the transaction of the caller's if there
// is one, and may be called again if somebody else was quicker.
type Change struct {
	// Current reads what there is. What the change is computed from, such as the row
	// that a patch is for, belongs to the same statement. Required.
	Current func(ctx context.Context) (State, error)
	// Write makes the change and returns how many rows it wrote. Its statement sets
	// the version to the next, and has the one that was found in its condition:
	//
	//	UPDATE orders SET ..., version = <next> WHERE id = <id> AND version = <found>
	//
	// Where found is 0 it inserts, and lets a row that is there already be (ON
	// CONFLICT DO NOTHING). It sets values and adds to none: what a try computed
	// holds for the version found. Required.
	Write func(ctx context.Context, found, next int64) (rows int64, err error)
	// Creates says that Write can create a resource that does not exist, as PUT
	// may. Otherwise Apply returns ErrNotFound in that case, whatever the
	// precondition: a precondition is only evaluated if the request would succeed
	// without it (RFC 9110 13.2.1).
	Creates bool
	// Done, if not nil, reports whether what Current found is what the change would
	// lead to: the request took effect before and its answer was lost, or somebody
	// else did the same. It is asked where the precondition does not hold, or
	// nothing is there; then the change counts as made (RFC 9110 13.1.1).
	Done func(ctx context.Context) (bool, error)
}

// Result is what became of a change.
type Result struct {
	Version int64 // that the resource has now
	Created bool  // there was none before
	// Repeated reports that nothing was written, because Change.Done reported true.
	Repeated bool
}

// Apply makes a change if the precondition in ctx holds, which it does if there is
// none. Between the look and the change nobody else's gets lost: the statement
// writes only over the version that was looked at. When somebody was quicker it
// looks again, so a change that depends on no particular version is made on top
// of the other, up to 10 times.
//
// The precondition is about the request's target. For a change to another resource
// in the same request, call Apply with the context of Without.
//
// The errors are *FailedError, ErrNotFound, ErrContended and ErrNotWritten, for
// which see Refuse, and those of the functions, unchanged. Only an error of Write
// can leave open whether there was an effect, outside of a transaction. The
// functions are responsible for respecting ctx.
func Apply(ctx context.Context, c Change) (Result, error) {
	p := of(ctx)
	var last int64 = -1
	for range maxTries {
		s, err := c.Current(ctx)
		if err != nil {
			return Result{}, err
		}
		if s.Version < 0 || s.Gone && s.Version == 0 {
			return Result{}, fmt.Errorf("conditional: a State cannot have version %d and be gone: %t", s.Version, s.Gone)
		}
		if s.Version == last {
			return Result{}, ErrNotWritten
		}
		last = s.Version
		if err := c.allowed(p, s); err != nil {
			if c.Done == nil || !isRefusal(err) {
				return Result{}, err
			}
			done, doneErr := c.Done(ctx)
			if doneErr != nil || !done {
				return Result{}, cmp.Or(doneErr, err)
			}
			p.applied.Store(true)
			return Result{Version: s.Version, Repeated: true}, nil
		}
		rows, err := c.Write(ctx, s.Version, s.Version+1)
		if err != nil {
			return Result{}, err
		}
		if ok, err := wrote(rows); err != nil {
			return Result{}, err
		} else if ok {
			p.applied.Store(true)
			return Result{Version: s.Version + 1, Created: !s.exists()}, nil
		}
	}
	return Result{}, ErrContended
}

// allowed returns why the change cannot be made to what is there.
func (c *Change) allowed(p *precondition, s State) error {
	if !s.exists() && !c.Creates {
		return ErrNotFound
	}
	return p.check(s)
}

func isRefusal(err error) bool {
	_, failed := errors.AsType[*FailedError](err)
	return failed || errors.Is(err, ErrNotFound)
}

// wrote reports whether the one row was written.
func wrote(rows int64) (bool, error) {
	if rows != 0 && rows != 1 {
		return false, fmt.Errorf("conditional: %d rows were written; a change is to one", rows)
	}
	return rows == 1, nil
}

// Rows returns the number of rows that a statement of database/sql wrote:
//
//	return conditional.Rows(tx.ExecContext(ctx, "UPDATE ..."))
//
// With pgx it is the RowsAffected of the CommandTag.
func Rows(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
