package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// EnvPostgres names the environment variable with the URL of a PostgreSQL
// server to use for Postgres instead of a private one. Its user must be allowed
// to create databases.
const EnvPostgres = "SEMEL_TEST_POSTGRES"

var shared struct {
	once   sync.Once
	server *PostgresServer
	err    error
}

// Postgres returns the URL of a fresh, empty database, which is dropped at the
// end of the test. All of a test binary's databases are on one server, which no
// test can crash, so that it does without fsync; it ends with the binary. What is
// measured should be on a server of StartPostgres.
func Postgres(t testing.TB) string {
	t.Helper()
	long(t)
	if given := os.Getenv(EnvPostgres); given != "" {
		return createDatabase(t, given)
	}
	shared.once.Do(func() {
		shared.server, shared.err = newPostgresServer(PostgresOptions{Parameters: map[string]string{"fsync": "off"}})
	})
	if shared.err != nil {
		missing(t, shared.err)
	}
	return shared.server.NewDatabase(t)
}

// createDatabase makes a database on the server of admin and returns its URL.
func createDatabase(t testing.TB, admin string) string {
	t.Helper()
	name := "semel_test_" + strings.ToLower(rand.Text())
	if err := execute(admin, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'UTF8'"); err != nil {
		t.Fatalf("testenv: create a database: %v", err)
	}
	t.Cleanup(func() {
		// A server that the test has stopped takes its databases with it.
		_ = execute(admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	return withDatabase(t, admin, name)
}

func withDatabase(t testing.TB, server, database string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("testenv: the server's URL: %v", err)
	}
	u.Path = "/" + database
	return u.String()
}

func execute(server, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return psql(ctx, server, sql)
}

// psql has the server's own client run a statement. A driver would be a
// requirement of the root module, and so of everyone who uses semel.
func psql(ctx context.Context, server, sql string) error {
	program, err := findOrInstall("psql", "postgresql-client")
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, program, "--no-psqlrc", "--no-password", "--quiet", "--set=ON_ERROR_STOP=1", "--command="+sql, server)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// PostgresOptions tune a server of one's own.
type PostgresOptions struct {
	// Parameters are server parameters, such as max_connections.
	Parameters map[string]string
	// Networks are networks that the server listens in, beside the loopback,
	// and whose hosts it trusts: its address there, and how many bits of it
	// they have in common.
	Networks []netip.Prefix
}

// StartPostgres starts a server for this test alone, with fsync on, to be stopped,
// killed and restarted at will. It ends with the test.
func StartPostgres(t testing.TB, o PostgresOptions) *PostgresServer {
	t.Helper()
	long(t)
	s, err := newPostgresServer(o)
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(s.remove)
	return s
}

// URL returns the URL of the server's database postgres, with its superuser.
func (s *PostgresServer) URL() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.Addr())
}

// NewDatabase returns the URL of a fresh, empty database on the server.
func (s *PostgresServer) NewDatabase(t testing.TB) string {
	t.Helper()
	return createDatabase(t, s.URL())
}
