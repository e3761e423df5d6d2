package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// gatewayChild is a gateway, or a service that protects itself, between its proxies.
type gatewayChild struct {
	forms       []form // of the keys that are sent to it
	process     *process
	front, back *proxy
	database    *wire // nil with SQLite
}

type run struct {
	config   Config
	history  *history
	ledger   *process
	gateways []*gatewayChild
	keys     keys
	shop     *shopRun // nil for other subjects
	attempts atomic.Uint64
	failed   atomic.Bool // a violation ended the run early
	found    []Violation // those that ended the run of a shop early

	mu  sync.Mutex
	rng *rand.Rand
}

// newRand returns a new source, seeded by the run's.
func (r *run) newRand() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.rng.Uint64(), r.rng.Uint64()))
}

func (r *run) random(from, to time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return randomDuration(r.rng, from, to)
}

func (r *run) ledgerFile() string { return filepath.Join(r.config.Dir, "ledger.jsonl") }
func (r *run) storeFile() string  { return filepath.Join(r.config.Dir, "semel.db") }

// TimelineFile is the name of the file in Config.Dir with the history.
const TimelineFile = "timeline.txt"

// Run tortures until Config.Duration is over or ctx ends, waits until everything is
// settled, and reports. An error means that the run itself failed, and says nothing
// about what was tortured.
func Run(ctx context.Context, c Config) (report *Report, err error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("torture: config: %w", err)
	}
	timeline, err := os.OpenFile(filepath.Join(c.Dir, TimelineFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	defer func() { err = errors.Join(err, timeline.Close()) }()
	r := &run{
		config: c, history: newHistory(timeline),
		keys: keys{most: c.Keys, left: map[string]bool{}},
		rng:  rand.New(rand.NewPCG(c.Seed, 0)),
	}
	prefix := fmt.Sprintf("t%04x", c.Seed&0xffff)
	r.keys.name = func(n int) string { return formKey(prefix, n, c.LargeEvery) }
	if c.Shop {
		r.keys.name = func(n int) string { return orderKey(prefix, n) }
	}
	defer func() { err = errors.Join(err, r.history.flush()) }()
	defer r.tearDown()
	if err := r.setUp(ctx); err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	stuck, err := r.torture(ctx)
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	if report, err = r.report(stuck); err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	return report, nil
}

func (r *run) setUp(ctx context.Context) error {
	c := r.config
	manner := []string{
		"--listen", "127.0.0.1:0", "--seed", fmt.Sprint(c.Seed),
		"--delay", (c.Lease / 20).String(), "--slow", (c.Lease * 5 / 2).String(),
	}
	if c.Shop {
		if err := r.setUpShop(ctx, manner); err != nil {
			return err
		}
	}
	var backs []*proxy
	for i := range c.Gateways {
		if c.Shop {
			break
		}
		if c.Payments != "" {
			if err := r.addProtected(fmt.Sprint(i+1), manner); err != nil {
				return err
			}
			continue
		}
		g, err := r.addGateway(fmt.Sprint(i + 1))
		if err != nil {
			return err
		}
		backs = append(backs, g.back)
	}
	if c.Payments == "" && !c.Shop {
		r.ledger = &process{
			name: "ledger", binary: c.Binary, says: Listening + " on ", history: r.history,
			follow: func(addr string) {
				for _, b := range backs {
					b.lead(addr)
				}
			},
			args: append([]string{"torture", "ledger", "--file", r.ledgerFile(), "--slow-every", fmt.Sprint(c.SlowEvery)}, manner...),
		}
		if err := r.ledger.start(ctx); err != nil {
			return err
		}
	}
	for _, g := range r.gateways {
		if err := g.process.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// addChild adds a child behind a new proxy, and returns the URL of its store.
func (r *run) addChild(name string, forms []form) (g *gatewayChild, store string, err error) {
	g = &gatewayChild{forms: forms}
	r.gateways = append(r.gateways, g)
	if g.front, err = newProxy("front "+name, front, r.history, r.newRand(), r.config.Nemesis.CutFront); err != nil {
		return nil, "", err
	}
	store = "sqlite:" + r.storeFile()
	if r.config.Postgres != "" {
		g.database, store, err = wireTo(r.config.Postgres)
	}
	return g, store, err
}

func (r *run) addGateway(name string) (*gatewayChild, error) {
	c := r.config
	g, store, err := r.addChild(name, forms)
	if err != nil {
		return nil, err
	}
	if g.back, err = newProxy("back "+name, back, r.history, r.newRand(), c.Nemesis.CutBack); err != nil {
		return nil, err
	}
	binary, args := c.instead()
	g.process = &process{
		name: "gateway " + name, binary: binary, says: "semel gateway is listening on ", history: r.history, follow: g.front.lead,
		args: append(args, "gateway", "--listen", "127.0.0.1:0", "--upstream", "http://"+g.back.addr(), "--store", store,
			"--lease", c.Lease.String(), "--on-crash", c.OnCrash, "--deadline", (20 * c.Lease).String(),
			"--max-inline", fmt.Sprint(maxInline), "--max-result", fmt.Sprint(maxResult)),
	}
	return g, nil
}

// addProtected adds a process of the example, and one of the service beside it.
func (r *run) addProtected(name string, manner []string) error {
	c := r.config
	example, store, err := r.addChild("payments "+name, []form{formSmall})
	if err != nil {
		return err
	}
	example.process = &process{
		name: "payments " + name, binary: c.Payments, says: "listening on ", history: r.history, follow: example.front.lead,
		args: []string{"--listen", "127.0.0.1:0", "--db", store, "--delay", (c.Lease / 20).String()},
	}
	if c.LargeEvery < 0 {
		return nil
	}
	service, store, err := r.addChild("service "+name, forms[1:])
	if err != nil {
		return err
	}
	service.process = &process{
		name: "service " + name, binary: c.Binary, says: Listening + " on ", history: r.history, follow: service.front.lead,
		// It has few transactions, so they stay open for longer.
		args: append([]string{"torture", "service", "--database", store, "--slow-every", fmt.Sprint(max(c.SlowEvery/5, 1))}, manner...),
	}
	return nil
}

// gatewaysFor returns the gateways to which a key can be sent.
func (r *run) gatewaysFor(key string) (some []*gatewayChild) {
	f := formOf(key)
	for _, g := range r.gateways {
		if slices.Contains(g.forms, f) {
			some = append(some, g)
		}
	}
	return some
}

// wireTo returns a wire to the database of a URL, and the URL of the wire.
func wireTo(database string) (*wire, string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, "", errors.New("the database's URL cannot be parsed") // err would show it
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	w, err := newWire(net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, "", err
	}
	u.Host = w.addr()
	return w, u.String(), nil
}

// records lists the records of the gateways.
type records interface {
	semel.Lister
	close(context.Context) error
}

type sqliteRecords struct{ *sqlite.Store }

func (s sqliteRecords) close(ctx context.Context) error { return s.Close(ctx) }

type postgresRecords struct {
	*postgres.Store
	pool *pgxpool.Pool
}

func (s postgresRecords) close(ctx context.Context) error {
	err := s.Close(ctx)
	s.pool.Close()
	return err
}

func (r *run) records(ctx context.Context) (records, error) {
	if r.config.Postgres == "" {
		s, err := sqlite.Open(ctx, sqlite.Config{Path: r.storeFile(), MustExist: true})
		return sqliteRecords{s}, err
	}
	pool, err := pgxpool.New(ctx, r.config.Postgres)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(ctx, pool, postgres.Config{NoMigrate: true})
	if err != nil {
		pool.Close()
	}
	return postgresRecords{s, pool}, err
}

// tearDown ends what still runs.
func (r *run) tearDown() {
	for _, g := range r.gateways {
		if g.process != nil {
			g.process.kill()
		}
		for _, p := range []*proxy{g.front, g.back} {
			if p != nil {
				p.close()
			}
		}
		if g.database != nil {
			g.database.close()
		}
	}
	if r.ledger != nil {
		r.ledger.kill()
	}
	if r.shop != nil {
		r.shop.close()
	}
}

func (r *run) phase(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.history.add(event{kind: kindPhase, who: "torture", text: text})
	r.say("%s", text)
}

func (r *run) say(format string, args ...any) {
	if r.config.Progress != nil {
		_, _ = fmt.Fprintf(r.config.Progress, "%7.1fs  %s\n", time.Since(r.history.start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// torture does the run, and returns the keys that are stuck at its end.
func (r *run) torture(ctx context.Context) (stuck []string, err error) {
	c := r.config
	striking, stop := context.WithTimeout(ctx, c.Longest)
	defer stop()
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var (
		watching           sync.WaitGroup
		watchErr, blowErr  error
		working            sync.WaitGroup
		patience, lastCall = context.WithCancel(context.WithoutCancel(ctx))
	)
	defer lastCall()
	watching.Go(func() { watchErr = r.watch(background) })
	watching.Go(func() { r.progress(background) })
	stopWatching := func() {
		stopBackground()
		watching.Wait()
	}
	defer stopWatching()

	what := "gateways"
	if c.Shop {
		what = "shops"
	}
	r.phase("seed %d, lease %v, on-crash %s: %d %s, %d clients, for %v", c.Seed, c.Lease, c.OnCrash, c.Gateways, what, c.Clients, c.Duration)
	for i := range c.Clients {
		working.Go(func() {
			client := r.newClient(fmt.Sprintf("client %d", i+1))
			defer client.close()
			if c.Shop {
				client.shopWork(striking, patience)
			} else {
				client.work(striking, patience)
			}
		})
	}
	if c.Shop {
		working.Go(func() { r.operate(striking) })
	}
	if c.FailFast {
		working.Go(func() { r.lookOut(striking, stop) })
	}
	working.Go(func() {
		pause(striking, c.Duration)
		for striking.Err() == nil && r.sawTooLittle() {
			pause(striking, c.Duration/10)
		}
		stop()
	})
	blowErr = r.nemesis(striking)
	stop()
	for _, g := range r.gateways {
		g.front.behave()
		if g.back != nil {
			g.back.behave()
		}
	}
	r.phase("no more faults")
	if r.failed.Load() {
		lastCall()
	}
	// Most clients finish by themselves. The keys that they leave are sent below.
	timer := time.AfterFunc(4*c.Lease, lastCall)
	working.Wait()
	timer.Stop()
	if blowErr != nil {
		return nil, blowErr
	}
	if err := ctx.Err(); err != nil || r.failed.Load() {
		return nil, err
	}

	if c.Shop {
		if stuck, err = r.settleShop(ctx); err != nil {
			return nil, err
		}
		stopWatching()
		return stuck, errors.Join(watchErr, r.terminate())
	}
	store, err := r.records(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.close(context.WithoutCancel(ctx))) }()
	if _, err := r.quiet(ctx, store); err != nil {
		return nil, err
	}
	last := r.keys.unsettled()
	r.phase("all leases have ended; sending all %d keys again", len(last))
	r.sendAgain(ctx, last, func(ctx context.Context, c *client, key string) string { return c.settle(ctx, key, 20, false) })
	if stuck, err = r.quiet(ctx, store); err != nil {
		return nil, err
	}
	stopWatching()
	return stuck, errors.Join(r.terminate(), watchErr, ctx.Err())
}

// terminate shuts the gateways down.
func (r *run) terminate() error {
	r.phase("stopping")
	for _, g := range r.gateways {
		if err := g.process.terminate(10 * r.config.Lease); err != nil {
			return err
		}
	}
	return nil
}

// quiet waits until no record is in progress under a lease, for as long as the
// slowest effect and a lease take. It returns the keys that still are.
func (r *run) quiet(ctx context.Context, store semel.Lister) (stuck []string, err error) {
	end := time.Now().Add(6*r.config.Lease + 2*time.Second)
	for {
		stuck = nil
		for after := uint64(0); ; {
			records, err := store.List(ctx, semel.Filter{State: semel.StateInProgress, After: after, Limit: 1000})
			if err != nil {
				return nil, err
			}
			for _, rec := range records {
				after = rec.Fence
				if !rec.Lapsed() {
					stuck = append(stuck, rec.Identity.Key)
				}
			}
			if len(records) < 1000 {
				break
			}
		}
		if len(stuck) == 0 || time.Now().After(end) {
			return stuck, nil
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// sendAgain has all clients send keys until each is settled. Each attempt has a limit,
// but the whole has none, because a busy machine may take any time. It ends early when
// enough keys have been given up to show that the run failed.
func (r *run) sendAgain(ctx context.Context, keys []string, settle func(context.Context, *client, string) string) {
	const enough = 10
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := make(chan string)
	var sending sync.WaitGroup
	var gaveUp atomic.Int64
	for i := range r.config.Clients {
		sending.Go(func() {
			client := r.newClient(fmt.Sprintf("again %d", i+1))
			client.unhurried = true
			defer client.close()
			for key := range next {
				if settle(ctx, client, key) == endGaveUp && gaveUp.Add(1) == enough {
					cancel()
				}
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	sending.Wait()
}

// lookOut ends the run at the first violation.
func (r *run) lookOut(ctx context.Context, stop func()) {
	for ctx.Err() == nil {
		pause(ctx, 300*time.Millisecond)
		e, err := r.evidence(false)
		if err != nil && r.shop != nil {
			continue // its database may be down
		}
		if err != nil {
			return // report returns it
		}
		if found := e.check(); len(found) > 0 {
			if r.shop != nil { // what is missing may still arrive
				r.found = found
			}
			r.phase("a violation: ending early")
			r.failed.Store(true)
			stop()
		}
	}
}

// evidence reads the ledger after the history, so that it has every effect in the
// history. While the run goes on, effects later than the history are left out,
// because the attempts that caused them may be missing.
func (r *run) evidence(over bool) (*evidence, error) {
	e := &evidence{over: over, hold: r.config.OnCrash == "hold", atomic: r.config.Payments != "", lease: r.config.Lease, start: r.history.start, events: r.history.snapshot()}
	if r.shop != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var err error
		e.shop, e.messages, err = r.shopFacts(ctx)
		return e, err
	}
	effects, err := r.readLedger()
	for _, f := range effects {
		if over || f.At.Sub(e.start) <= e.events[len(e.events)-1].at {
			e.effects = append(e.effects, f)
		}
	}
	return e, err
}

func (r *run) readLedger() ([]Effect, error) {
	if r.config.Payments != "" {
		return readOrders(r.config.Postgres)
	}
	return readLedger(r.ledgerFile())
}

func (r *run) progress(ctx context.Context) {
	for {
		pause(ctx, 5*time.Second)
		if ctx.Err() != nil {
			return
		}
		f := count(r.history.snapshot())
		r.say("%d keys, %d acknowledged, %d attempts, %d retries; %d kills, %d pauses, %d cuts", f.Keys, f.Acknowledged, f.Attempts, f.Retries, f.kills(), f.pauses(), f.cuts())
		_ = r.history.flush() // Run returns its error
	}
}

// Listening is what ledgers, services, shops and remotes print when they listen.
const Listening = "semel torture is listening"
