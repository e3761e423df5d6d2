package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// SchemaOf returns the statements that made the tables of an older version.
func SchemaOf(name string, version int) string {
	ddl := strings.Join(migrations[:version], "\n")
	return in(name, fmt.Sprintf("CREATE SCHEMA {s};\n%s\nUPDATE {s}.version SET version = %d;\n", ddl, version))
}

// SchemaVersion is what this package knows.
func SchemaVersion() int { return len(migrations) }

// ChannelName is where the stores over a schema notify.
func ChannelName(schema string) string { return channelName(schema) }

// MigrateWithin is Migrate with other bounds.
func MigrateWithin(ctx context.Context, pool *pgxpool.Pool, schema string, othersMigrate, tableLock time.Duration) error {
	return migrate(ctx, pool, schema, othersMigrate, tableLock)
}

// MigrationLock is what keeps a second migration waiting.
func MigrationLock(schema string) int64 { return migrationLock(schema) }
