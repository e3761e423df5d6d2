package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/cmd/semel/internal/torture"
)

// tortureSettings are the flags of semel torture.
type tortureSettings struct {
	subject, onCrash         choice
	duration, longest, lease time.Duration
	clients, keys            int
	largeEvery               int
	seed                     uint64
	dir                      string
	postgres                 string
	payments                 string
	restart                  string
	json, quiet              bool
}

func (p *program) tortureCommand() *cobra.Command {
	s := tortureSettings{
		subject: choice{value: "gateway-sqlite", of: []string{"gateway-sqlite", "gateway-postgres", "payments", "shop"}},
		onCrash: choice{value: "hold", of: []string{"hold", "retry"}},
	}
	cmd := &cobra.Command{
		Use:   "torture",
		Short: "Kill, pause and cut off gateways, and check that effects happen once",
		Long: `Starts two gateways that share one store, and behind them an effect ledger, which
syncs each effect to disk before it responds: all separate processes, on loopback
only. Clients send operations, retry them under the same key as the responses
advise, and send some acknowledged ones again. Meanwhile processes are killed and
paused for longer than a lease, and connections are cut on both sides of the
gateways, and to their database. (With the subject payments the gateways are the
example itself, and the ledger is its table; another service makes the responses
that are not small.) One key in --large-every has such a response: large, over the
limit of what is recorded, or a stream of events. In the end everything runs again,
nothing is resolved, each key is sent once more, and the history, the ledger and the
store must agree:

  second-effect             a key has more than one effect
  second-effect-of-claim    one claim caused more than one effect (--on-crash retry)
  responses-differ          acknowledgements of one key are not the same bytes, or not
                            those of the ledger
  torn-response             a response came to its end, but is not whole
  effect-missing            an effect reported to a client is not in the ledger
  acknowledgement-lost      a key was acknowledged, and later is not
  effect-after-refusal      every attempt was told "no effect", and there is one
  unknown-without-cause     an outcome is unknown though only its client was cut off
  stuck                     a key is in progress beyond its lease, or has no response
  failed-start              a gateway ended before it listened
  unexpected-response       a response that no client should see

The subject shop is three copies of a service that uses all that semel has for
services, on one database, and behind them a service that charges, once for each key.
An order is placed by requests under two keys, by a webhook and by a job, at once or in
turn, and is one operation under its own number. One step reserves, one charges, and
one records the order and enqueues a notice, whose receiver is behind an inbox, and an
event, which is a webhook to the next copy. Each copy has a completer, a relay and a
worker for jobs. Their clocks are four minutes apart, and that of the webhooks'
sender further. Some orders are declined, the authority of some jobs is revoked before
they run, some webhooks are forged, and some finished jobs are run again. In addition
to the faults above, the traffic between a copy and its database, or the charging
service, is sometimes delayed. After the faults no more requests are sent: within a
dozen leases every order must be completed, or be making progress. Then every order is
sent again in every way, and these are checked: one reservation, charge, notice and
event each, none for what was refused, the same response every way, a stock that
agrees with the reservations, and

  effect-of-rolled-back     a message reports what was not committed
  out-of-order              messages of one lane took effect in another order

A violation is printed with the timeline of its key. The directory of the run has
the whole timeline, the ledger and the store; it is removed after a run without a
violation, unless --dir named it.

The seed decides what is chosen at random. The machine decides when processes run, so
the same seed makes a similar run, not an identical one.

The exit code is 0 if no promise was broken, 5 if one was, 6 if the run saw too few
faults, retries or acknowledgements to prove anything, and 1 if it could not be
completed.`,
		Example: `  semel torture --duration 1m
  semel torture --duration 10m --seed 42 --json
  semel torture --subject gateway-postgres --postgres postgres://me@127.0.0.1/empty
  semel torture --subject shop --postgres postgres://me@127.0.0.1/empty --duration 10m
  semel torture --on-crash retry`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.torture(cmd.Context(), s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	choiceFlag(cmd, &s.subject, "subject", "what is tortured")
	f.StringVar(&s.postgres, "postgres", "", "URL of an empty database, for all subjects but gateway-sqlite")
	f.StringVar(&s.payments, "payments", "", "program of the payments example, for the subject payments")
	f.StringVar(&s.restart, "restart-database", "", "shell command that crashes and restarts the database, and returns when the database responds")
	f.DurationVar(&s.duration, "duration", time.Minute, "how long faults strike; settling everything takes some seconds more")
	f.DurationVar(&s.longest, "longest", 0, "longest time that faults strike if --duration saw too little, as on a slow machine (default --duration)")
	f.Uint64Var(&s.seed, "seed", 0, "seed of what is chosen at random (default a new one each time)")
	choiceFlag(cmd, &s.onCrash, "on-crash", "policy of the gateways")
	f.DurationVar(&s.lease, "lease", time.Second, "lease of the gateways; other times follow from it")
	f.IntVar(&s.clients, "clients", 24, "how many clients work at the same time")
	f.IntVar(&s.keys, "keys", 200_000, "largest number of keys")
	f.IntVar(&s.largeEvery, "large-every", 3, "one key in this many has a response that is large, over the limit or a stream; negative for none")
	f.StringVar(&s.dir, "dir", "", "empty directory for the run's files (default a temporary one)")
	f.BoolVar(&s.quiet, "quiet", false, "print nothing on standard error while it runs")
	jsonFlag(cmd, &s.json)
	fromEnv(cmd, "postgres")
	cmd.AddCommand(p.tortureLedgerCommand(), p.tortureServiceCommand(), p.tortureShopCommand(torture.ShopHooks{}), p.tortureRemoteCommand())
	return cmd
}

func (p *program) torture(ctx context.Context, s tortureSettings) error {
	onSQLite, shop := s.subject.value == "gateway-sqlite", s.subject.value == "shop"
	switch {
	case !onSQLite && s.postgres == "":
		return usagef("--subject %s needs --postgres, as in postgres://user@127.0.0.1:5432/empty", s.subject.value)
	case onSQLite && (s.postgres != "" || s.restart != ""):
		return usagef("--postgres and --restart-database are not for the subject gateway-sqlite")
	case (s.subject.value == "payments") != (s.payments != ""):
		return usagef("--subject payments needs --payments, the program of that example, and nothing else does")
	case (s.payments != "" || shop) && s.onCrash.value != "hold":
		return usagef("--on-crash is for gateways: a crash rolls back an operation of payments, and an operation of a shop is continued")
	case s.duration <= 0 || s.lease < 100*time.Millisecond || s.clients < 1 || s.keys < 1 || s.largeEvery == 0:
		return usagef("--duration, --clients and --keys must be positive, --large-every not 0, and --lease at least 100ms")
	}
	binary, err := os.Executable()
	if err != nil {
		return &fault{code: exitFailed, err: fmt.Errorf("the path of this program cannot be found: %w", err)}
	}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	dir := s.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "semel-torture-"); err != nil {
			return &fault{code: exitFailed, err: fmt.Errorf("no directory for the run's files could be made: %w", err), do: "Name an empty directory with --dir."}
		}
	} else if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return usagef("--dir %s must be an empty directory that exists", dir)
	}
	c := torture.Config{
		Binary: binary, Dir: dir, Duration: s.duration, Longest: s.longest, Seed: s.seed, OnCrash: s.onCrash.value,
		Lease: s.lease, Clients: s.clients, Keys: s.keys, LargeEvery: s.largeEvery, Shop: shop,
	}
	if c.Postgres, c.Payments = s.postgres, s.payments; s.restart != "" {
		c.RestartDatabase = func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, "/bin/sh", "-c", s.restart).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	if !s.quiet {
		c.Progress = p.stderr
	}
	report, err := torture.Run(ctx, c)
	if err != nil {
		return &fault{
			code: exitFailed, err: fmt.Errorf("%w (seed %d)", err, s.seed),
			do: "The run proves nothing. Its timeline is " + filepath.Join(dir, torture.TimelineFile) + ". A retry is safe.",
		}
	}
	if s.json {
		if err := p.printJSON(report); err != nil {
			return err
		}
	} else {
		report.Write(p.stdout)
	}
	switch {
	case len(report.Violations) > 0:
		return &fault{
			code: exitViolated, err: fmt.Errorf("%d promises were broken (seed %d)", len(report.Violations), s.seed),
			do: "The timeline, the ledger and the store of the run are in " + dir + ".",
		}
	case len(report.Inconclusive) > 0:
		return &fault{
			code: exitInconclusive, err: fmt.Errorf("the run is inconclusive: it saw too little (seed %d)", s.seed),
			do: "Run it for longer, or on a machine that is less busy. Its files are in " + dir + ".",
		}
	}
	if s.dir == "" {
		_ = os.RemoveAll(dir)
	}
	return nil
}

// listening prints the address for the process that started this one.
func (p *program) listening(addr string) {
	_, _ = fmt.Fprintf(p.stderr, "%s on http://%s\n", torture.Listening, addr)
}

func (p *program) tortureLedgerCommand() *cobra.Command {
	c := torture.LedgerConfig{Listening: p.listening}
	cmd := &cobra.Command{
		Use:    "ledger",
		Short:  "The service behind the gateways",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return torture.ServeLedger(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.File, "file", "ledger.jsonl", "file of the effects")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:0", "address to listen on")
	mannerFlags(cmd, &c.Manner)
	return cmd
}

func (p *program) tortureRemoteCommand() *cobra.Command {
	c := torture.RemoteConfig{Listening: p.listening}
	cmd := &cobra.Command{
		Use:    "remote",
		Short:  "The service behind shops",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return torture.ServeRemote(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.File, "file", "charges.jsonl", "file of the charges")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:0", "address to listen on")
	mannerFlags(cmd, &c.Manner)
	return cmd
}

// tortureShopCommand returns the command of a shop with hooks. The program has none.
func (p *program) tortureShopCommand(hooks torture.ShopHooks) *cobra.Command {
	c := torture.ShopConfig{Listening: p.listening, Hooks: hooks}
	cmd := &cobra.Command{
		Use:    "shop",
		Short:  "A service that uses all packages for services",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return torture.ServeShop(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.Database, "database", "", "URL of a PostgreSQL database")
	f.StringVar(&c.Remote, "remote", "", "URL of the service that charges")
	f.StringVar(&c.Peer, "peer", "", "URL of the shop that the outbox delivers to")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:0", "address to listen on")
	f.DurationVar(&c.Lease, "lease", time.Second, "how long a claim holds without renewal")
	f.DurationVar(&c.Clock, "clock", 0, "how far its clock is off")
	mannerFlags(cmd, &c.Manner)
	return cmd
}

func (p *program) tortureServiceCommand() *cobra.Command {
	c := torture.ServiceConfig{Listening: p.listening}
	cmd := &cobra.Command{
		Use:    "service",
		Short:  "A service that protects itself in its own database",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return torture.ServeService(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.Database, "database", "", "URL of a PostgreSQL database")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:0", "address to listen on")
	mannerFlags(cmd, &c.Manner)
	return cmd
}

func mannerFlags(cmd *cobra.Command, m *torture.Manner) {
	f := cmd.Flags()
	f.DurationVar(&m.Delay, "delay", 50*time.Millisecond, "longest time that an ordinary effect takes")
	f.DurationVar(&m.Slow, "slow", 2500*time.Millisecond, "longest time that a slow effect takes")
	f.IntVar(&m.SlowEvery, "slow-every", 20, "one in so many effects is slow")
	f.IntVar(&m.RefuseEvery, "refuse-every", 40, "one in so many requests is refused without an effect")
	f.Uint64Var(&m.Seed, "seed", 0, "seed of what is chosen at random")
}
