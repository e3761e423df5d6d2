package postgres

import "time"

// wait measures for how long a statement has been under way.
type wait struct{ since time.Time }

func startWait() wait { return wait{time.Now()} }

// gaveUp reports whether the statement failed because it had waited for another
// transaction for as long as it may. Where the time is over just as one lock is
// granted, and the statement goes on to wait for another, as behind others that wait
// for the same row, the server has forgotten what it was over for: it says that the
// user has cancelled it.
func (w wait) gaveUp(err error, most time.Duration) bool {
	state := sqlState(err)
	return state == codeLockWait || state == codeCancelled && time.Since(w.since) >= most
}
