package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// The columns that tx.stored reads.
const (
	recordColumns = `number, coalesce(fence, number), token, state, expires_at, position, lease_until, settled_at,
		begun_at, retention, reopened, tenant, actor, operation, key,
		fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, cause`
	resultColumns = `codec, label, reference, tombstone, pieces, pieces_size, head, body`

	selectRecord = `SELECT ` + recordColumns + `, ` + resultColumns + ` FROM record WHERE key = ? AND digest = ?`
)

// stored is a record with what only the store knows of it.
type stored struct {
	*semel.Record // that of conflict
	conflict      semel.ConflictError
	number        uint64
	position      uint64 // of the entry that the record is, or 0
	token         []byte
	leaseUntil    int64
	expiresAt     int64
}

func newStored() *stored {
	s := &stored{}
	s.Record = &s.conflict.Record
	return s
}

func (s *stored) expired(now int64) bool {
	return s.State == semel.StateCompleted && s.expiresAt <= now
}

// unsettled reports whether the record may be taken over or resolved.
func (s *stored) unsettled(now int64) bool {
	return s.State == semel.StateUnknown || s.State == semel.StateInProgress && s.leaseUntil <= now
}

// record reads recordColumns, as the record is at now. It is likely that of like.
func (r *row) record(names namer, now int64, like *semel.Identity) *stored {
	s := newStored()
	s.number, s.Fence = uint64(r.int()), uint64(r.int())
	s.ID = names.ID(s.number)
	s.token = r.blob()
	s.State = semel.State(r.int())
	s.ExpiresAt, s.expiresAt = r.time()
	s.position = uint64(r.int())
	if s.leaseUntil = r.int(); s.leaseUntil != 0 {
		s.Lease = duration(s.leaseUntil - now)
	}
	s.SettledAt, _ = r.time()
	s.BegunAt = time.UnixMicro(r.int())
	retention := r.int()
	s.Retention = duration(retention)
	if s.State == semel.StateCompleted {
		s.SettledAt = time.UnixMicro(s.expiresAt - retention)
	}
	s.Reopened = r.int() != 0
	s.Identity.Tenant, s.Identity.Actor = r.textLike(like.Tenant), r.textLike(like.Actor)
	s.Identity.Operation, s.Identity.Key = r.textLike(like.Operation), r.textLike(like.Key)
	s.Fingerprint.Scheme = r.text()
	copy(s.Fingerprint.Sum[:], r.bytes())
	s.Origin = semel.Origin{RequestID: r.text(), EventID: r.text(), TraceID: r.text()}
	s.Cause = r.text()
	return s
}

// result reads resultColumns.
func (r *row) result(s *Store) semel.Result {
	res := semel.Result{Codec: r.text(), Label: r.text(), Reference: r.text(), Tombstone: r.int() != 0}
	body, inPieces := r.number()
	size := r.int()
	res.Head, res.Body = r.blob(), r.blob()
	if inPieces {
		res.Pieces = s.pieces(body, size)
	}
	return res
}

// time reads a time that may be missing.
func (r *row) time() (time.Time, int64) {
	us, ok := r.number()
	if !ok {
		return time.Time{}, 0
	}
	return time.UnixMicro(us), us
}

// micros rounds up, so that nothing ends before its time.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

func duration(us int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(max(min(us, most), -most)) * time.Microsecond
}

func orNull(s string) driver.Value {
	if s == "" {
		return nil
	}
	return s
}

func oneOrNull(b bool) driver.Value {
	if !b {
		return nil
	}
	return int64(1)
}

// namer is recordid.Namer, or a test's.
type namer interface {
	ID(number uint64) string
	Number(id string) (number uint64, ok bool)
	Digest(id semel.Identity) [16]byte
}

// digest distinguishes the identities of one key; eight bytes are enough for
// that.
type digest [8]byte

func (s *Store) digest(id semel.Identity) digest {
	whole := s.names.Digest(id)
	return digest(whole[:len(digest{})])
}

// errCollision: two identities of one key have one digest, so that only one of
// them can have a record. That does not happen by chance, nor can anybody bring it about
// who does not know the store's secret.
var errCollision = errors.New("sqlite: the record of this identity's digest is another identity's; the file was tampered with, or its secret was")

func (s *Store) checkResult(r semel.Result) error {
	if err := storekit.CheckName("codec", r.Codec, true); err != nil {
		return fmt.Errorf("sqlite: result: %w", err)
	}
	if err := storekit.CheckSize(r, s.config.MaxResultBytes); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// resultBytes is how much of a result goes into its record.
func resultBytes(r semel.Result) int { return len(r.Head) + len(r.Body) + len(r.Reference) }

// find returns the record of id in the transaction, expired or not.
func (t *tx) find(id semel.Identity) (rec *stored, found bool, err error) {
	digest := t.store.digest(id)
	err = t.query(selectRecord, func(r *row) {
		rec, found = r.record(t.store.names, t.now, &id), true
		rec.Result = r.result(t.store)
	}, id.Key, digest[:])
	if err == nil && found && rec.Identity != id {
		return nil, false, errCollision
	}
	return rec, found, err
}

// find returns the committed record of id, unless there is none or it has
// expired. It may be shared.
func (s *Store) find(ctx context.Context, id *semel.Identity, digest digest) (rec *stored, found bool, err error) {
	if rec = s.cache.get(id, time.Now().UnixMicro()); rec != nil {
		if err = s.usable(ctx); err == nil {
			if err = s.files.look(); err != nil {
				err = fmt.Errorf("sqlite: %w", err)
			}
		}
		return rec, err == nil, err
	}
	return s.readRecord(ctx, *id, digest)
}

// readRecord is find without the cache.
func (s *Store) readRecord(ctx context.Context, id semel.Identity, digest digest) (rec *stored, found bool, err error) {
	before, stable := s.cache.state()
	err = s.read(ctx, func(c *conn) error {
		now := time.Now().UnixMicro()
		return c.query(selectRecord, func(r *row) {
			rec, found = r.record(s.names, now, &id), true
			rec.Result = r.result(s)
			found = !rec.expired(now)
		}, id.Key, digest[:])
	})
	if err == nil && rec != nil && rec.Identity != id {
		return nil, false, errCollision
	}
	if stable && found && err == nil {
		s.cache.put(rec, before)
	}
	return rec, found && err == nil, err
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	rec, found, err := s.find(ctx, &id, s.digest(id))
	switch {
	case err != nil:
		return semel.Record{}, err
	case !found:
		return semel.Record{}, semel.ErrNotFound
	}
	return *rec.Record, nil
}

// Begin implements semel.Store.
func (s *Store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if err := errors.Join(
		a.Identity.Validate(),
		storekit.CheckName("fingerprint scheme", a.Fingerprint.Scheme, true),
	); err != nil {
		return nil, fmt.Errorf("sqlite: begin: %w", err)
	}
	a.Origin = storekit.Origin(a.Origin, storekit.Cut)
	if s.config.Mode == ModeTransactional {
		return s.txs.begin(ctx, a)
	}
	return s.beginLeased(ctx, a)
}

type none = struct{}
