package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
)

// SchemaVersion is what this package knows.
func SchemaVersion() int { return len(migrations) }

// ChannelName is where the stores over a schema notify.
func ChannelName(schema string) string { return channelName(schema) }

// MigrateWithin is Migrate with other bounds, and to a version beyond what this
// package knows.
func MigrateWithin(ctx context.Context, pool *pgxpool.Pool, schema string, othersMigrate, tableLock time.Duration, further ...string) error {
	return migrate(ctx, pool, schema, append(slices.Clone(migrations), further...), othersMigrate, tableLock)
}

// MigrationLock is what keeps a second migration waiting.
func MigrationLock(schema string) int64 { return migrationLock(schema) }

// SameDigest makes a store find all identities by one digest.
func SameDigest(s *Store) { s.names = sameDigest{s.names} }

type sameDigest struct{ namer }

func (sameDigest) Digest(semel.Identity) (d [16]byte) { return d }
