package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxName is the maximum length in bytes of a message id and of a consumer's
// name. For longer ids use a digest, such as SHA-256 in hexadecimal.
const MaxName = 255

// Errors of a store's Transact, and therefore of Process. After each of them
// the message must be delivered again.
var (
	// ErrInProgress reports that another open transaction has recorded the message.
	// Nothing took effect. If that transaction commits, the redelivery is a
	// duplicate.
	ErrInProgress = errors.New("inbox: another transaction is handling the message")
	// ErrRolledBack reports that the commit failed. Nothing took effect.
	ErrRolledBack = errors.New("inbox: the transaction was rolled back")
	// ErrUnknown reports that it is open whether the transaction, and with it
	// the id, was committed. The redelivery finds out.
	ErrUnknown = errors.New("inbox: it is open whether the transaction was committed")
)

// Store stores the ids of handled messages, in the database in which handlers
// have their effects. It implements no policy. Package inboxtest tests this
// contract.
//
// All methods are safe for concurrent use, by many goroutines and processes. Ids
// and consumers have been validated with Check and are compared byte by byte.
type Store interface {
	// Transact records ids, which are distinct, for a consumer and calls work in
	// the same transaction, with a context that carries it as documented by the
	// store's package. first reports for each id whether it was not on record.
	// If all ids are on record, work is not called and nothing is written.
	//
	// Transact commits if work returns nil, even if ctx has ended. It rolls back
	// if work returns an error, which Transact returns, or if work panics or
	// ends its goroutine. Any error except ErrUnknown means that nothing took
	// effect.
	//
	// If another open transaction has recorded an id, Transact waits for a time
	// limited by the store and then fails with ErrInProgress or another error.
	// Transactions with the same ids in different orders do not deadlock because
	// of that.
	Transact(ctx context.Context, consumer string, ids []string, work func(ctx context.Context, first []bool) error) error
	// Seen reports for each id whether it is on record. It sees committed ids
	// only and does not wait for transactions.
	Seen(ctx context.Context, consumer string, ids []string) ([]bool, error)
	// Sweep removes at most limit ids of a consumer that were recorded longer than
	// retention ago, by the store's clock, oldest first.
	Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (removed int, err error)
	// Count returns the number of ids on record for a consumer, at most limit.
	// Its cost grows with the result.
	Count(ctx context.Context, consumer string, limit int) (int, error)
}

// Check reports what is wrong with the name of a consumer or with ids. The
// error does not contain the ids.
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

// First reports for each element of ids whether it is in recorded and occurs in
// ids for the first time. A store's Receive returns its result.
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
