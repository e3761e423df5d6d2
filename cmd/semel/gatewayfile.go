package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/semelhttp"
)

func (p *program) lookupEnv(name string) (string, bool) {
	v, ok := p.env[name]
	return v, ok
}

// readConfig reads and checks a gateway's configuration. Its errors name file and
// line.
func (p *program) readConfig(file string) (*gatewayfile.Config, error) {
	c, err := gatewayfile.ParseFile(file, p.lookupEnv)
	switch problems := strict.Problems(err); {
	case err == nil:
	case len(problems) == 0:
		return nil, &fault{code: exitUsage, err: fmt.Errorf("the configuration cannot be read: %w", err), do: "Name the file with the configuration. Nothing was done."}
	default:
		return nil, &fault{code: exitUsage, err: fmt.Errorf("the configuration is not in order (problems: %d):\n%w", len(problems), err), do: "Correct the file: semel gateway check. Nothing was done."}
	}
	if _, err := parseStoreURL(c.Store.URL); err != nil {
		return nil, usagef("%s: store.url: %w; use %s, or memory: for records that end with the process", file, err, storeForms)
	}
	return c, nil
}

// liveConfig is a configuration at work.
type liveConfig struct {
	*gatewayfile.Config
	built   *gatewayfile.Built
	handler http.Handler
}

// live is what answers by a configuration that can be replaced.
type live struct {
	p       *program
	file    string
	log     *logger
	runtime *gatewayfile.Runtime
	store   *lateStore
	cipher  *semel.Cipher // nil if nothing is encrypted

	mu      sync.Mutex // held while it is replaced
	current atomic.Pointer[liveConfig]
}

func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A request stays with the configuration that it has begun with.
	l.current.Load().handler.ServeHTTP(w, r)
}

// use puts a configuration to work.
func (l *live) use(c *gatewayfile.Config) error {
	keys, err := c.EncryptionKeys()
	if err != nil {
		return fmt.Errorf("%s: encryption cannot be used: %w", l.file, err)
	}
	built, err := c.Build(l.runtime)
	if err != nil {
		return err
	}
	if l.cipher != nil {
		if err := l.cipher.Rotate(keys...); err != nil {
			_ = built.Close()
			return err
		}
	}
	next := &liveConfig{c, built, built}
	if !c.Resources.Off {
		next.handler = l.store.withReady(c.Resources.Prefix+readyPath, built)
	}
	before := l.current.Swap(next)
	l.runtime.Keep(c)
	if before != nil {
		_ = before.built.Close() // of connections that nobody uses
	}
	return nil
}

// reload reads the file again. While there is anything wrong with it, what is at
// work stays.
func (l *live) reload() {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.current.Load()
	failed := func(err error) {
		l.log.Error("the configuration was not reloaded: the former one stays at work", "file", l.file, "digest", before.Digest(), "err", err)
	}
	c, err := l.p.readConfig(l.file)
	if err != nil {
		failed(err)
		return
	}
	if fixed := gatewayfile.NeedsRestart(before.Config, c); len(fixed) > 0 {
		failed(fmt.Errorf("%s cannot be changed while the gateway runs; restart it to change them", strings.Join(fixed, ", ")))
		return
	}
	if err := l.use(c); err != nil {
		l.runtime.Keep(before.Config)
		failed(err)
		return
	}
	l.log.Info("the configuration was reloaded", "file", l.file, "digest", c.Digest(), "before", before.Digest())
	for _, cut := range gatewayfile.CutOff(before.Config, c) {
		l.log.Warn("keys from before the reload are cut off", "route", cut.Pattern, "change", cut.Change, "means", cut.Means)
	}
}

// serveFile runs a gateway that a file describes.
func (p *program) serveFile(ctx context.Context, cmd *cobra.Command, file string) error {
	var others []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "config" {
			others = append(others, "--"+f.Name)
		}
	})
	if len(others) > 0 {
		return usagef("%s cannot be used with %s: the file holds all settings", strings.Join(others, ", "), named(cmd, "config"))
	}
	c, err := p.readConfig(file)
	if err != nil {
		return err
	}
	log := newLog(p.stderr, c.LogFormat)
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: c.Spool.Dir, MaxBytes: int64(c.Spool.Max), Failed: log.gateway().SpoolFailed})
	if err == nil {
		err = checkSpool(c.Spool.Dir)
	}
	if err != nil {
		return usagef("%s: spool.dir cannot be used: %w", file, err)
	}
	l := &live{p: p, file: file, log: log}
	if keys, err := c.EncryptionKeys(); err != nil {
		return usagef("%s: encryption cannot be used: %w", file, err)
	} else if len(keys) > 0 {
		if l.cipher, err = semel.NewCipher(keys...); err != nil {
			return err
		}
	}
	defer func() {
		if l.runtime != nil {
			l.runtime.Close()
		}
	}()
	return p.serve(ctx, cmd, service{
		log: log, at: listeningOf(c), listenSetting: "listen in " + file, store: c.Store.URL, requireStore: c.Store.Required,
		admin: adminOf(c), spools: spools,
		maxResult: c.MaxResult(), drain: func() time.Duration { return l.current.Load().Drain },
		guard: semel.Config{
			Cipher: l.cipher, MaxExecutions: c.Bounds.Executions, MaxTenantExecutions: c.Bounds.TenantExecutions, MaxWaiters: c.Bounds.Waiters,
		},
		handler: func(guard *semel.Guard, store *lateStore, observer *gateway.Observer) (http.Handler, error) {
			l.store = store
			l.runtime = &gatewayfile.Runtime{Guard: guard, Spools: spools, Observer: observer, Failed: log.principal, Refused: log.delivery}
			if err := l.use(c); err != nil {
				return nil, usagef("%w", err)
			}
			return l, nil
		},
		announce: func(addr string, notOpen error) { p.announceFile(log, c, file, addr, notOpen) },
		explain:  func() gatewayfile.Explanation { return l.current.Load().Explain(withoutSecrets) },
		reload:   l.reload,
	})
}

func listeningOf(c *gatewayfile.Config) listening {
	return listening{Address: c.Listen, Cert: c.TLS.CertFile, Key: c.TLS.KeyFile, ClientCA: c.TLS.ClientCAFile, H2C: c.H2C}
}

func adminOf(c *gatewayfile.Config) adminSettings {
	return adminSettings{
		addr: c.Admin.Listen, tokenFile: c.Admin.TokenFile, drainDelay: c.DrainDelay, accessLog: choice{value: c.AccessLog}, dryRun: c.DryRun,
		name: func(flag string) string {
			return map[string]string{"admin": "admin.listen", "admin-token-file": "admin.token_file", "drain-delay": "drain_delay"}[flag]
		},
	}
}

// announceFile says what was started.
func (p *program) announceFile(log *logger, c *gatewayfile.Config, file, addr string, notOpen error) {
	storeNote := withoutSecrets(c.Store.URL)
	if strings.HasPrefix(c.Store.URL, "memory:") {
		storeNote += " (records end with this process: a retry after a restart executes again)"
	}
	if notOpen != nil {
		storeNote += " (not open yet: " + troubleOf(notOpen).class + "; protected requests are answered with 503)"
	}
	if c.LogFormat == "json" {
		log.Info("listening", "addr", addr, "config", file, "digest", c.Digest(), "store", storeNote, "routes", len(c.Routes), "principal", c.Principal.Kind())
		return
	}
	_, _ = fmt.Fprintf(p.stderr, "semel gateway is listening on %s\n  config    %s (%s), %d routes; semel gateway check --explain prints them\n  store     %s\n  principal %s\n",
		listeningOf(c).url(addr), file, c.Digest(), len(c.Routes), storeNote, c.Principal.Kind())
}

func (p *program) gatewayCheckCommand() *cobra.Command {
	var explain, asJSON bool
	var since string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a gateway's configuration, and explain its settings",
		Long: `Reads the configuration of a gateway as semel gateway --config does, and reports
everything that is wrong with it, with line and column. It opens no connection.

With --explain it prints every setting of every route: its value, and whether that
is the default or which line of the file and which environment variables it comes
from. With --since it says which keys a reload would cut off if the gateway now runs
with that other file.

The keys of the file are described in docs/gateway.md and by semel gateway schema.`,
		Example: "  semel gateway check gateway.yaml\n  semel gateway check gateway.yaml --explain --json\n  semel gateway check new.yaml --since gateway.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := p.readConfig(args[0])
			if err != nil {
				return err
			}
			report := checkReport{File: args[0], Digest: c.Digest(), Routes: len(c.Routes)}
			if explain {
				report.Explanation = new(c.Explain(withoutSecrets))
			}
			if since != "" {
				before, err := p.readConfig(since)
				if err != nil {
					return err
				}
				report.NeedsRestart = gatewayfile.NeedsRestart(before, c)
				report.CutOff = gatewayfile.CutOff(before, c)
			}
			if asJSON {
				return p.printJSON(report)
			}
			return p.printCheck(report, since)
		},
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "print every setting of every route, and where it comes from")
	cmd.Flags().StringVar(&since, "since", "", "say which keys a reload from this file would cut off")
	jsonFlag(cmd, &asJSON)
	return cmd
}

type checkReport struct {
	File         string                   `json:"file"`
	Digest       string                   `json:"digest"`
	Routes       int                      `json:"routes"`
	Explanation  *gatewayfile.Explanation `json:"explanation,omitempty"`
	NeedsRestart []string                 `json:"needs_restart,omitempty"`
	CutOff       []gatewayfile.Cut        `json:"cut_off,omitempty"`
}

func (p *program) printCheck(r checkReport, since string) error {
	out := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	table := func(settings []gatewayfile.Setting) {
		for _, s := range settings {
			_, _ = fmt.Fprintf(out, "  %s\t%s\t%s\n", printable(s.Name), printable(s.Value), printable(s.From))
		}
	}
	if e := r.Explanation; e != nil {
		_, _ = fmt.Fprintln(out, "gateway")
		table(e.Server)
		for _, route := range e.Routes {
			protected := ""
			if !route.Protected {
				protected = ", NOT PROTECTED"
			}
			_, _ = fmt.Fprintf(out, "\nroute %s (%s:%d)%s\n", printable(strings.Join(route.Match, ", ")), printable(r.File), route.Line, protected)
			table(route.Settings)
		}
		_, _ = fmt.Fprintln(out)
	}
	if len(r.NeedsRestart) > 0 {
		_, _ = fmt.Fprintf(out, "a reload is refused: it changes %s\n", strings.Join(r.NeedsRestart, ", "))
	}
	for _, c := range r.CutOff {
		_, _ = fmt.Fprintf(out, "cut off: %s: %s: %s\n", printable(c.Pattern), printable(c.Change), c.Means)
	}
	if since != "" && len(r.CutOff) == 0 {
		_, _ = fmt.Fprintln(out, "a reload cuts no keys off")
	}
	_, _ = fmt.Fprintf(out, "%s is in order: %d routes\n", printable(r.File), r.Routes)
	return out.Flush()
}

func (p *program) gatewaySchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration",
		Long:    "Prints the JSON Schema (draft 2020-12) of a gateway's configuration, for editors and\nchecks. What a schema cannot express is reported by semel gateway check only.",
		Example: "  semel gateway schema > gateway.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := p.stdout.Write(gatewayfile.Schema())
			return err
		},
	}
}
