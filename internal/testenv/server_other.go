//go:build !unix

package testenv

import (
	"errors"
	"os/exec"
	"testing"
)

var errNoServers = errors.New("servers are not started on this system; set " + EnvPostgres + " to use one")

func findOrInstall(name, _ string) (string, error) { return exec.LookPath(name) }

// PostgresServer is a private server. There are none on this system.
type PostgresServer struct{}

func newPostgresServer(PostgresOptions) (*PostgresServer, error) { return nil, errNoServers }

// Addr is the server's TCP address.
func (s *PostgresServer) Addr() string { return "" }

// Socket is the directory of the server's Unix socket.
func (s *PostgresServer) Socket() string { return "" }

// Log returns what the server has logged.
func (s *PostgresServer) Log() string { return "" }

// Start starts the server.
func (s *PostgresServer) Start() error { return errNoServers }

// Stop stops the server.
func (s *PostgresServer) Stop() error { return errNoServers }

// Kill kills the server.
func (s *PostgresServer) Kill() error { return errNoServers }

// Restart restarts the server.
func (s *PostgresServer) Restart() error { return errNoServers }

func (s *PostgresServer) remove() {}

// PgBouncer skips the test.
func PgBouncer(t testing.TB, _ string) string {
	t.Helper()
	missing(t, errNoServers)
	return ""
}

// Chromium skips the test.
func Chromium(t testing.TB) string {
	t.Helper()
	missing(t, errNoServers)
	return ""
}
