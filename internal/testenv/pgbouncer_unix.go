//go:build unix

package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// PgBouncer starts a PgBouncer in transaction mode before the database that
// pgURL names and returns the URL to use instead. It keeps no prepared
// statements. It ends with the test.
func PgBouncer(t testing.TB, pgURL string) string {
	t.Helper()
	long(t)
	u, err := url.Parse(pgURL)
	if err != nil {
		t.Fatalf("testenv: the server's URL: %v", err)
	}
	program, err := findOrInstall("pgbouncer", "pgbouncer")
	if err != nil {
		missing(t, err)
	}
	f, err := newFolder()
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(f.remove)
	host, port, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	credentials := "user=" + u.User.Username()
	if password, ok := u.User.Password(); ok {
		credentials += " password=" + password
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s %s
[pgbouncer]
listen_addr = %s
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 40
max_client_conn = 1000
pidfile = %s/pid
`, u.Hostname(), u.Port(), credentials, host, port, f.path)
	ini := filepath.Join(f.path, "pgbouncer.ini")
	if err := os.WriteFile(ini, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(ini, f.account.uid, f.account.gid); err != nil {
		t.Fatal(err)
	}
	p, err := f.start(program, ini)
	if err != nil {
		t.Fatal(err)
	}
	bounced := *u
	bounced.Host = fmt.Sprintf("%s:%d", host, port)
	if err := f.await(p, func(ctx context.Context) error { return psql(ctx, bounced.String(), "") }); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return bounced.String()
}
