package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/semelhq/semel"
	semelotel "github.com/semelhq/semel/adapter/otel"
	"github.com/semelhq/semel/cmd/semel/internal/console"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
)

// adminSettings are the flags of what operators see of a gateway.
type adminSettings struct {
	addr, tokenFile string
	drainDelay      time.Duration
	accessLog       choice
	dryRun          bool
	name            func(flag string) string // how messages name a setting
}

func (s *adminSettings) flags(cmd *cobra.Command) {
	s.name = func(flag string) string { return named(cmd, flag) }
	s.accessLog = choice{value: "off", of: []string{"off", "json"}}
	f := cmd.Flags()
	f.StringVar(&s.addr, "admin", "", "address of the admin listener: /livez, /readyz, /metrics, and a page for operators at /console/; without a host it is this host's loopback, as in :9090 (default none)")
	f.StringVar(&s.tokenFile, "admin-token-file", "", "file with the token, of at least 16 characters, that the page asks for, and /metrics and /readyz?verbose as Authorization: Bearer; needed, here or as $"+adminTokenEnv+", where the admin listener is not on loopback")
	f.DurationVar(&s.drainDelay, "drain-delay", 0, "how long the gateway goes on as before a drain while /readyz says no already: as long as a load balancer takes to notice")
	choiceFlag(cmd, &s.accessLog, "access-log", "one line of JSON for each request, on standard output; keys and callers are digests in it")
	f.BoolVar(&s.dryRun, "dry-run", false, "protect NOTHING: forward every request, and only tell what would have been decided, in the log, in metrics and in the header "+semelhttp.HeaderDryRun)
}

const (
	adminTokenEnv = "SEMEL_ADMIN_TOKEN"
	minAdminToken = 16
)

// operations is what operators see of a gateway. Without a Telemetry there is
// nothing to see, and nothing is measured.
type operations struct {
	*semelotel.Telemetry
	settings adminSettings
	log      *logger
	store    *lateStore
	token    string

	access   *accessLog
	registry *prometheus.Registry // nil without an admin listener
	listener net.Listener
	server   *http.Server
	gate     *console.Gate // has the token
	console  *console.Console
	exports  []func(context.Context) error // flush and stop what exports

	ready    readiness
	draining atomic.Bool
	running  sync.WaitGroup
	stop     context.CancelFunc
}

// operate makes what the settings and the environment ask for. It serves nothing
// yet, but the address is taken. It must be closed.
func (p *program) operate(ctx context.Context, s adminSettings, log *logger, store *lateStore) (*operations, error) {
	o := &operations{settings: s, log: log, store: store, stop: func() {}}
	o.ready.store = store
	traces, err := p.exports("TRACES")
	metrics, err2 := p.exports("METRICS")
	if err := errors.Join(err, err2); err != nil {
		return nil, usagef("%w", err)
	}
	if s.drainDelay < 0 {
		return nil, usagef("%s is %v; it must not be negative", s.name("drain-delay"), s.drainDelay)
	}
	if s.addr == "" && s.accessLog.value == "off" && !traces && !metrics {
		return o, nil
	}
	if s.addr != "" {
		if err := o.listen(ctx, p.env[adminTokenEnv]); err != nil {
			return nil, err
		}
	}
	if err := o.instrument(ctx, p, traces, metrics); err != nil {
		o.close()
		return nil, usagef("the OTEL_ settings cannot be used: %w", err)
	}
	return o, nil
}

// exports reports whether the signal goes to a collector, by the variables that
// OpenTelemetry gives for it. Nothing leaves unless one of them asks for it.
func (p *program) exports(signal string) (bool, error) {
	if strings.EqualFold(p.env["OTEL_SDK_DISABLED"], "true") {
		return false, nil
	}
	asked := p.env["OTEL_EXPORTER_OTLP_ENDPOINT"] != "" || p.env["OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"] != ""
	switch name := "OTEL_" + signal + "_EXPORTER"; p.env[name] {
	case "":
	case "otlp":
		asked = true
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("%s is %q; otlp and none are possible, and --admin has metrics for Prometheus", name, p.env[name])
	}
	protocol := cmp.Or(p.env["OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"], p.env["OTEL_EXPORTER_OTLP_PROTOCOL"], "http/protobuf")
	if asked && protocol != "http/protobuf" {
		return false, fmt.Errorf("the protocol for %s is %q; only http/protobuf is supported, which collectors accept at port 4318", strings.ToLower(signal), protocol)
	}
	return asked, nil
}

// listen takes the address.
func (o *operations) listen(ctx context.Context, envToken string) error {
	host, port, err := net.SplitHostPort(o.settings.addr)
	if err != nil {
		return usagef("%s is %q; write it as :9090, or with a host as in 10.0.0.5:9090", o.settings.name("admin"), o.settings.addr)
	}
	o.token = strings.TrimSpace(envToken)
	if o.settings.tokenFile != "" {
		text, err := os.ReadFile(o.settings.tokenFile)
		if err != nil {
			return usagef("%s cannot be used: %w", o.settings.name("admin-token-file"), err)
		}
		o.token = strings.TrimSpace(string(text))
		if o.token == "" {
			return usagef("%s: there is no token in the file; put one in, as from openssl rand -hex 32", o.settings.name("admin-token-file"))
		}
	}
	if o.token != "" && len(o.token) < minAdminToken {
		return usagef("the admin token has %d characters; at least %d are needed, as from openssl rand -hex 32", len(o.token), minAdminToken)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if loopback := host == "localhost" || err == nil && ip.IsLoopback(); !loopback && o.token == "" {
		return usagef("%s is %q, which others can reach; give a token with %s or %s, or leave out the host", o.settings.name("admin"), o.settings.addr, o.settings.name("admin-token-file"), adminTokenEnv)
	}
	o.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return &fault{
			code: exitFailed, err: fmt.Errorf("the admin listener cannot listen on %s: %w", o.settings.addr, err),
			do: fmt.Sprintf("Free the address or choose another with %s. Nothing was started; a retry is safe.", o.settings.name("admin")),
		}
	}
	return nil
}

// instrument makes the Telemetry and where it goes.
func (o *operations) instrument(ctx context.Context, p *program, traces, metrics bool) error {
	version := readVersion().Version
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "semel-gateway"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv()) // the last one wins
	if err != nil {
		return err
	}
	meters := []sdkmetric.Option{sdkmetric.WithResource(res)}
	if o.listener != nil {
		o.registry = prometheus.NewRegistry()
		o.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		exporter, err := promexporter.New(promexporter.WithRegisterer(o.registry), promexporter.WithoutScopeInfo(),
			promexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
		if err != nil {
			return err
		}
		meters = append(meters, sdkmetric.WithReader(exporter))
	}
	if metrics {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return err
		}
		meters = append(meters, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	meter := sdkmetric.NewMeterProvider(meters...)
	o.exports = append(o.exports, meter.Shutdown)
	config := semelotel.Config{MeterProvider: meter, DryRun: o.settings.dryRun}
	if traces {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return err
		}
		tracer := sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithBatcher(exporter))
		o.exports = append(o.exports, tracer.Shutdown)
		config.TracerProvider = tracer
	}
	if traces || metrics {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			o.log.Warn("telemetry could not be exported; requests are served all the same", "err", err)
		}))
	}
	if o.settings.accessLog.value == "json" {
		o.access = newAccessLog(p.stdout, o.log, o.settings.dryRun)
		config.Completed = o.access.request
	}
	o.Telemetry, err = semelotel.New(config)
	return err
}

func (o *operations) guardObserver() *semel.Observer {
	observer := o.log.guard()
	if o.settings.dryRun {
		observer.Answered = o.log.rehearsed
	}
	if o.Telemetry == nil {
		return observer
	}
	return o.Guard(observer)
}

func (o *operations) gatewayObserver() *gateway.Observer {
	observer := o.log.gateway()
	if o.settings.dryRun {
		observer.Refused = o.log.rehearsedRefusal
	}
	if o.Telemetry == nil {
		return observer
	}
	return o.Gateway(observer)
}

// swept is told how each sweep of the store ended.
func (o *operations) swept(records int, err error) {
	if o.Telemetry != nil {
		o.Swept(context.Background(), records, err)
	}
	if err != nil {
		o.log.Warn("sweep failed; the next one goes on", "err", err)
	}
}

func (o *operations) handler(next http.Handler) http.Handler {
	if o.Telemetry == nil {
		return next
	}
	return o.Handler(next)
}

// countEvery is how often unknown records are counted.
const countEvery = 15 * time.Second

// start has the guard and the spools watched, and serves the admin listener, whose
// page shows what explain tells of the configuration.
func (o *operations) start(guard *semel.Guard, spools *semelhttp.Spools, explain func() gatewayfile.Explanation) error {
	if o.Telemetry == nil {
		return nil
	}
	if err := errors.Join(o.WatchGuard(guard), o.WatchSpools(spools)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	o.running.Go(func() {
		for timer := time.NewTimer(0); ; timer.Reset(countEvery) {
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			call, cancel := context.WithTimeout(ctx, countEvery/2)
			_ = o.CountRecords(call, o.store) // that the store fails is told by /readyz
			cancel()
		}
	})
	if o.listener == nil {
		return nil
	}
	o.gate = console.NewGate(o.token, func(times int) { o.log.Warn("a wrong admin token was given", "times", times) })
	o.console = console.New(console.Config{
		Gate: o.gate, Store: o.store, Guard: guard, Metrics: o.registry, Configuration: explain, Ready: o.notReady,
	})
	o.running.Go(func() { o.console.Run(ctx) })
	o.server = &http.Server{
		Handler:           o.routes(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.log.Handler(), slog.LevelWarn),
	}
	o.running.Go(func() { _ = o.server.Serve(o.listener) })
	o.log.Info("admin listener", "admin", o.listener.Addr().String(), "token", o.token != "")
	return nil
}

// drain has /readyz say no; what it returns tells when the delay is over.
func (o *operations) drain() <-chan time.Time {
	o.draining.Store(true)
	if o.settings.drainDelay > 0 {
		o.log.Info("not ready any more; draining soon", "delay", o.settings.drainDelay)
	}
	return time.After(o.settings.drainDelay)
}

// endRuns ends what is being settled from the page, while the store is still there.
func (o *operations) endRuns() {
	if o.console != nil {
		o.console.Close()
	}
}

// close ends everything, and exports what has not been yet for as long as a
// collector that answers takes.
func (o *operations) close() {
	o.stop()
	switch {
	case o.server != nil:
		_ = o.server.Close()
	case o.listener != nil:
		_ = o.listener.Close()
	}
	o.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, export := range o.exports {
		if err := export(ctx); err != nil {
			o.log.Warn("the last telemetry could not be exported", "err", err)
		}
	}
	if o.access != nil {
		o.access.close(2 * time.Second)
	}
}

// routes are what the admin listener serves. Whether the gateway lives and is
// ready may be asked without the token, for orchestrators send none; that says no
// more than the status.
func (o *operations) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", o.readyz)
	metrics := promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(o.log.Handler(), slog.LevelWarn),
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if o.authorized(w, r) {
			metrics.ServeHTTP(w, r)
		}
	})
	mux.Handle(console.Prefix, o.console.Handler())
	mux.Handle("GET /{$}", http.RedirectHandler(console.Prefix, http.StatusSeeOther))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// authorized reports whether the request has the token, and refuses it otherwise.
// Where there is none, it must be to this host by its address or as localhost: a
// page in a browser that has its own name lead here is no operator.
func (o *operations) authorized(w http.ResponseWriter, r *http.Request) bool {
	if o.token == "" {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "localhost" {
			return true
		}
		http.Error(w, "Ask by address or as localhost, or set a token.", http.StatusMisdirectedRequest)
		return false
	}
	if given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		right, wait := o.gate.Admit(r, given)
		if right {
			return true
		}
		if wait > 0 {
			w.Header().Set("Retry-After", console.RetryAfter(wait))
			http.Error(w, "Too many wrong tokens were given. Try again later; it is safe.", http.StatusTooManyRequests)
			return false
		}
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="semel"`)
	http.Error(w, "This needs the admin token, as Authorization: Bearer.", http.StatusUnauthorized)
	return false
}

// notReady says what the gateway is not ready for; "" if it is ready.
func (o *operations) notReady() string {
	switch {
	case o.draining.Load():
		return "the gateway is stopping"
	case o.ready.check() != nil:
		return "the store does not answer"
	}
	return ""
}

// readyz reports whether requests should come here. Programs read the status only.
// One that excludes the store hears whether requests would be answered at all: where
// all gateways share a store, none of them is a better place while it is down.
func (o *operations) readyz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	verbose := query.Has("verbose")
	if verbose && !o.authorized(w, r) {
		return
	}
	for _, name := range query["exclude"] {
		if name != "store" {
			http.Error(w, "Only the store can be excluded, as in /readyz?exclude=store.", http.StatusBadRequest)
			return
		}
	}
	drain, store := "ok", "ok"
	if o.draining.Load() {
		drain = "failed: the gateway is stopping"
	}
	if query.Has("exclude") {
		store = "excluded"
	} else if err := o.ready.check(); err != nil {
		store = "failed: " + troubleOf(err).class
	}
	status, text := http.StatusOK, "ok"
	if drain != "ok" || strings.HasPrefix(store, "failed") {
		status, text = http.StatusServiceUnavailable, "not ready"
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	if verbose {
		_, _ = fmt.Fprintf(w, "drain %s\nstore %s\n", drain, store)
	}
	_, _ = fmt.Fprintln(w, text)
}

// readiness asks the store whether it answers: at most once a second, one at a
// time, however many ask.
type readiness struct {
	store semel.Store

	mu  sync.Mutex
	at  time.Time
	err error
}

// nobody is an identity that nothing is recorded under.
var nobody = semel.Identity{Scope: semel.Scope{Operation: "semel.readyz"}, Key: "readyz"}

func (r *readiness) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < time.Second {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := r.store.Find(ctx, nobody)
	if errors.Is(err, semel.ErrNotFound) {
		err = nil
	}
	r.at, r.err = time.Now(), err
	return err
}
