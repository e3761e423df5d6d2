// Package memory keeps records in the memory of one process: the reference
// store, for tests, for single processes whose effects die with them, and for
// learning what a store does.
//
// Its records do not survive the process. A retry that reaches another process,
// or the same one after a restart, executes again.
package memory

import (
	"errors"
	"fmt"
	"sync"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recordid"
)

// ErrFull is returned by Begin when the store holds Config.MaxRecords records
// and none of them has expired. Nothing was claimed.
var ErrFull = errors.New("memory: the store is full")

// Config sets the limits of a store. The zero value means the defaults.
type Config struct {
	// MaxRecords is the maximum number of records. Beyond it Begin fails with
	// ErrFull. Default 1,000,000.
	MaxRecords int
	// MaxTrail is the maximum number of audit entries. Older entries are
	// dropped. Default 10,000.
	MaxTrail int
}

// Store implements semel.Store, Resolver, Sweeper, Lister, Trail and Eraser. It is safe
// for concurrent use. Its clock is the process's monotonic clock, so setting
// the wall clock affects neither leases nor retention.
type Store struct {
	config   Config
	instance string
	names    *recordid.Namer

	mu      sync.Mutex
	records map[semel.Identity]*record
	expiry  expiryHeap
	fence   uint64
	trail   []semel.TrailEntry // a ring, once it is full
	oldest  int                // in trail
	noted   uint64
}

// New returns an empty store.
func New(c Config) (*Store, error) {
	if c.MaxRecords == 0 {
		c.MaxRecords = 1_000_000
	}
	if c.MaxTrail == 0 {
		c.MaxTrail = 10_000
	}
	if c.MaxRecords < 0 || c.MaxTrail < 0 {
		return nil, fmt.Errorf("memory: MaxRecords %d and MaxTrail %d must not be negative", c.MaxRecords, c.MaxTrail)
	}
	names, err := recordid.New(recordid.NewSecret())
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	return &Store{config: c, instance: semel.NewRecordID(), names: names, records: make(map[semel.Identity]*record)}, nil
}
