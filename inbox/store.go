package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxName is how many bytes the id of a message, and the name of a consumer, may
// have. Who has longer ids passes a digest of them, such as SHA-256 in hex.
const MaxName = 255

// Errors of a store's Transact, and so of Process. After each the message is to
// be delivered again.
var (
	// ErrInProgress: another transaction has recorded a message and has not ended.
	// Nothing took effect. If that one is committed, the redelivery is a duplicate.
	ErrInProgress = errors.New("inbox: another transaction is handling the message")
	// ErrRolledBack: the commit was refused. Nothing took effect.
	ErrRolledBack = errors.New("inbox: the transaction was rolled back")
	// ErrUnknown: it is open whether the transaction was committed, and with it
	// the id. The redelivery finds out.
	ErrUnknown = errors.New("inbox: it is open whether the transaction was committed")
)

// Store keeps the ids of messages that were handled, in the database in which
// handlers have their effects. It keeps no policy. Package inboxtest is the
// contract in executable form.
//
// All methods are safe for concurrent use, by many goroutines and processes. Ids
// and consumers have passed Check, and are compared byte by byte.
type Store interface {
	// Transact records ids, which are different from each other, for a consumer,
	// and calls work in the same transaction, with a context that carries it as
	// the store's package documents. first says of each id whether it was not on
	// record. Where none is, work is not called and nothing is written.
	//
	// Transact commits if work returns nil, also if ctx has ended by then, and
	// rolls back if it returns an error, which Transact returns, or if it panics
	// or ends its goroutine. Any error means that nothing took effect, but for
	// ErrUnknown.
	//
	// An id that another open transaction has recorded is waited for, for a time
	// that the store bounds, and then fails with ErrInProgress or another error.
	// Transactions with the same ids in different orders do not deadlock by that.
	Transact(ctx context.Context, consumer string, ids []string, work func(ctx context.Context, first []bool) error) error
	// Seen reports of each id whether it is on record. It sees what is committed,
	// and waits for nobody's transaction.
	Seen(ctx context.Context, consumer string, ids []string) ([]bool, error)
	// Sweep forgets at most limit ids of a consumer that were recorded longer than
	// retention ago, by the store's clock, the oldest first.
	Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (removed int, err error)
	// Count returns how many ids are on record for a consumer, at most limit. It
	// reads through as many.
	Count(ctx context.Context, consumer string, limit int) (int, error)
}

// Check reports what is wrong with the name of a consumer or with ids. An id is
// not quoted in the error.
func Check(consumer string, ids ...string) error {
	if err := check("name of the consumer", consumer); err != nil {
		return err
	}
	for _, id := range ids {
		if err := check("message id", id); err != nil {
			return err
		}
	}
	return nil
}

func check(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("inbox: the %s is empty", what)
	case len(s) > MaxName:
		return fmt.Errorf("inbox: the %s is %d bytes long; at most %d are allowed: use a digest of it", what, len(s), MaxName)
	case !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("inbox: the %s is not valid UTF-8, or holds the byte 0", what)
	}
	return nil
}

// First reports, for each of ids, whether it is its first occurrence there and
// among recorded: what a store's Receive returns.
func First(ids, recorded []string) []bool {
	first := make([]bool, len(ids))
	if len(ids) == 1 {
		first[0] = len(recorded) == 1
		return first
	}
	left := make(map[string]bool, len(recorded))
	for _, id := range recorded {
		left[id] = true
	}
	for i, id := range ids {
		first[i] = left[id]
		delete(left, id)
	}
	return first
}
