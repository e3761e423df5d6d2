package conditional

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
)

var (
	// ErrNotFound reports that the resource to be changed does not exist.
	ErrNotFound = errors.New("conditional: there is no such resource")
	// ErrContended reports that Apply gave up because others changed the resource
	// every time. There was no effect.
	ErrContended = errors.New("conditional: others change the resource all the time")
	// ErrNotWritten reports that the statement wrote no row although the resource is
	// still in the state that was read. Either another condition of the statement
	// does not hold, or it names a different row, or the transaction reads from a
	// snapshot and cannot see what the statement saw.
	ErrNotWritten = errors.New("conditional: no row was written, though the resource is as it was read")
)

// A FailedError reports that a request's precondition does not hold. There was
// no effect.
type FailedError struct {
	Field   string // the header field that does not hold, such as If-Match
	Current State
	// Weak reports whether a tag in If-Match names the current version but is weak,
	// as made by proxies when they compress. See Config.AcceptWeak.
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
// functions are called one after the other, in the caller's transaction if there
// is one, and may be called again if somebody else was faster.
type Change struct {
	// Current reads the state of the resource. Data that the change is computed
	// from, such as the row to be patched, must be read by the same statement.
	// Required.
	Current func(ctx context.Context) (State, error)
	// Write makes the change and returns the number of rows it wrote. Its statement
	// sets the version to next and requires the version found:
	//
	//	UPDATE orders SET ..., version = <next> WHERE id = <id> AND version = <found>
	//
	// If found is 0, it inserts, and leaves an existing row alone (ON CONFLICT
	// DO NOTHING). It must set values, not increment them, because they were
	// computed for the version found. Required.
	Write func(ctx context.Context, found, next int64) (rows int64, err error)
	// Creates says that Write can create the resource if it does not exist, as PUT
	// may. Otherwise Apply then returns ErrNotFound, whatever the precondition,
	// which applies only if the request would succeed without it (RFC 9110
	// 13.2.1).
	Creates bool
	// Done, if not nil, reports whether the state that Current found is the one
	// that the change would lead to, because the request took effect before and its
	// response was lost, or because somebody else made the same change. It is
	// called if the precondition does not hold or the resource does not exist. If
	// it returns true, the change counts as made (RFC 9110 13.1.1).
	Done func(ctx context.Context) (bool, error)
}

// Result is the result of a change.
type Result struct {
	Version int64 // that the resource has now
	Created bool  // there was none before
	// Repeated reports whether nothing was written because Change.Done returned
	// true.
	Repeated bool
}

// Apply makes a change if ctx has no precondition or its precondition holds. The
// statement overwrites only the version that was read, so no change of others is
// lost. If somebody else was faster, Apply reads again, up to 10 times, so a
// change without a precondition is made to the new version.
//
// The precondition applies to the request's target. For a change to another
// resource in the same request, call Apply with a context from Without.
//
// The errors are *FailedError, ErrNotFound, ErrContended and ErrNotWritten (see
// Refuse), and those of the functions, unchanged. Outside of a transaction, only
// an error of Write leaves open whether there was an effect. The functions must
// observe the end of ctx.
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
// With pgx use the RowsAffected method of the CommandTag.
func Rows(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
