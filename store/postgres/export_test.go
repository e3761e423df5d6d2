package postgres

import (
	"fmt"
	"strings"
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
