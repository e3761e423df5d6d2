package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/cmd/semel/internal/lab"
)

func (p *program) labCommand() *cobra.Command {
	var listen, file, store, preset string
	var anywhere bool
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a payments app whose defences against double execution can be switched off",
		Long: `Runs a small payments app that is deliberately vulnerable, with a page to see double
execution happen, and not happen. Charges, orders, roles, approvals and confirmations
each have defences that are switched while it runs: the key and its scope, the lock and
its lease, the fingerprint, the replay, the unique constraint, the outbox, the job
queue. Beside each incident the page shows the code that let it happen.

The app is a separate process, which can be crashed midway and is then restarted. What
is under way when the lab ends is lost, as in a crash.

Without --store or --file everything is forgotten when it ends. In a PostgreSQL database
everything is in the schema semel_lab, which is created, and left there. The lab listens
on this host only, and refuses other addresses unless --anywhere is given: whoever
reaches it can act as any of its users.

Lessons, in English and Japanese, are at /lessons/.

PRESETS
` + presetList() + `
The page's buttons send requests that curl can send as well:

  curl http://127.0.0.1:9003/v1/charges -H 'Authorization: Bearer alice@acme' \
    -H 'Idempotency-Key: "my-first-key"' --json '{"reference": "rent-may", "amount": 500}'

GET /v1/charges?reference=... counts the charges, GET /lab/mails lists what was sent and
GET /lab/trail what arrived; PATCH /lab/switches/charges sets switches, as in
{"scope": false}.`,
		Example: `  semel lab
  semel lab --preset semel
  semel lab --listen 127.0.0.1:9100 --file lab.db
  semel lab --store postgres://user@localhost/lab`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.lab(cmd.Context(), cmd, listen, file, store, preset, anywhere)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&listen, "listen", "127.0.0.1:9003", "address to listen on")
	f.StringVar(&file, "file", "", "SQLite file to keep everything in; made if it is not there (default a temporary one)")
	f.StringVar(&store, "store", "", "postgres://user@host/database or sqlite:lab.db to keep everything in, in the place of --file")
	f.StringVar(&preset, "preset", lab.Presets[0].Name, "how the switches are at the start")
	f.BoolVar(&anywhere, "anywhere", false, "allow --listen to be an address that other hosts can reach")
	_ = cmd.RegisterFlagCompletionFunc("preset", func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		for _, p := range lab.Presets {
			names = append(names, p.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	fromEnv(cmd)
	return cmd
}

func presetList() string {
	var b strings.Builder
	for _, p := range lab.Presets {
		fmt.Fprintf(&b, "  %-12s %s\n", p.Name, p.Lesson)
	}
	return b.String()
}

func (p *program) lab(ctx context.Context, cmd *cobra.Command, listen, file, store, preset string, anywhere bool) (err error) {
	if _, err := lab.FindPreset(preset); err != nil {
		return usagef("%s: %w", named(cmd, "preset"), err)
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usagef("%s is not an address: %w", named(cmd, "listen"), err)
	}
	if ip := net.ParseIP(host); !anywhere && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usagef("%s is an address that other hosts can reach, and the lab is deliberately vulnerable; if that is meant, add --anywhere", named(cmd, "listen"))
	}
	c := lab.Config{Preset: preset, Stderr: p.stderr}
	if store != "" {
		u, err := parseStoreURL(store)
		switch {
		case err != nil:
			return usagef("%s: %w; use postgres://user@host/database or sqlite:lab.db", named(cmd, "store"), err)
		case u.kind == "memory" || file != "":
			return usagef("%s: use one of postgres://user@host/database and sqlite:lab.db, and no --file with it", named(cmd, "store"))
		case u.kind == "postgres":
			c.Postgres = u.path
		default:
			file = u.path
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.Command = []string{self, labAppName}
	if file == "" && c.Postgres == "" {
		dir, err := os.MkdirTemp("", "semel-lab-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		file = filepath.Join(dir, "lab.db")
	}
	c.Path = file
	l, err := lab.Open(ctx, c)
	if err != nil {
		do := "Name another file with --file, or none. Nothing was started; a retry is safe."
		if c.Postgres != "" {
			do = "See that the database is there and may be written to. Nothing was started; a retry is safe."
		}
		return &fault{code: exitFailed, err: err, do: do}
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return &fault{
			code: exitFailed, err: fmt.Errorf("cannot listen on %s: %w", listen, err),
			do: fmt.Sprintf("Free the address or choose another with %s. Nothing was started; a retry is safe.", named(cmd, "listen")),
		}
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ran <- l.Run(background)
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-ran)
	}()
	// Open pages end with the context, so that the server need not wait for them.
	server := &http.Server{
		Handler: l.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	fmt.Fprintf(p.stderr, "semel lab is deliberately vulnerable. Open http://%s/ and press a button.\n", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ended:
		return server.Close() // it does not start, and the error says why
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(lab.MostDelay)*time.Millisecond+5*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// labAppName is the command that the lab starts for the app.
const labAppName = "lab-app"

func (p *program) labAppCommand() *cobra.Command {
	return &cobra.Command{
		Use: labAppName, Short: "The app of semel lab, which starts it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// What the terminal sends to stop the lab is the lab's matter, which ends this.
			return lab.RunApp(context.WithoutCancel(cmd.Context()), io.NopCloser(p.stdin), nopCloser{p.stdout})
		},
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
