package torture

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Nemesis says which faults strike, and how often.
type Nemesis struct {
	// Every is the mean time between two blows.
	Every time.Duration
	// How often each blow strikes each process in a round; half as often, rounded
	// up, if there are two sorts of processes. After a round the processes are left
	// in peace for six leases, so that there are executions whose client alone was
	// cut off. If all are zero, there are no blows.
	KillGateway, PauseGateway, KillLedger, PauseLedger int
	// The same for the connections of a gateway to its database, which are cut all at
	// once, and for the database itself. With PostgreSQL only.
	CutDatabase, RestartDatabase int
	// The same for delays, of up to two and a half leases, of all that passes between
	// a gateway and its database, or between a gateway and the ledger.
	HoldDatabase, HoldBack int
	// Odds that a request's connection is cut, between clients and gateways
	// and between gateways and ledger.
	CutFront, CutBack float64
}

// blow is a fault that strikes a process.
type blow struct {
	busy   *sync.Mutex // held while one strikes the same process
	strike func(context.Context) error
}

// nemesis strikes until ctx ends. When it returns, every process runs again.
func (r *run) nemesis(ctx context.Context) error {
	n := *r.config.Nemesis
	var blows []blow
	add := func(times int, busy *sync.Mutex, strike func(context.Context) error) {
		for range times {
			blows = append(blows, blow{busy, strike})
		}
	}
	process := func(p *process, kills, pauses int) {
		add(kills, &p.busy, func(ctx context.Context) error { return r.killAndStart(ctx, p) })
		if canPause {
			add(pauses, &p.busy, func(ctx context.Context) error { return r.pauseAndResume(ctx, p) })
		}
	}
	if len(r.gateways) > r.config.Gateways {
		n.KillGateway, n.PauseGateway, n.CutDatabase = (n.KillGateway+1)/2, (n.PauseGateway+1)/2, (n.CutDatabase+1)/2
	}
	for _, g := range r.gateways {
		process(g.process, n.KillGateway, n.PauseGateway)
		if g.database != nil {
			add(n.CutDatabase, new(sync.Mutex), func(context.Context) error { return r.cutDatabase(g) })
			add(n.HoldDatabase, new(sync.Mutex), func(ctx context.Context) error { return r.hold(ctx, g, database, &g.database.gate) })
		}
		if g.back != nil {
			add(n.HoldBack, new(sync.Mutex), func(ctx context.Context) error { return r.hold(ctx, g, back, &g.back.gate) })
		}
	}
	if r.ledger != nil {
		process(r.ledger, n.KillLedger, n.PauseLedger)
	}
	if r.config.RestartDatabase != nil {
		add(n.RestartDatabase, new(sync.Mutex), r.restartDatabase)
	}
	if len(blows) == 0 {
		<-ctx.Done()
		return nil
	}
	rng := r.newRand()
	var (
		under sync.WaitGroup
		once  sync.Once
		fault error
	)
	for ctx.Err() == nil {
		for _, b := range shuffled(rng, blows) {
			pause(ctx, randomDuration(rng, n.Every/2, n.Every*3/2))
			if ctx.Err() != nil {
				break
			}
			if !b.busy.TryLock() {
				continue // something strikes it already
			}
			under.Go(func() {
				defer b.busy.Unlock()
				if err := b.strike(ctx); err != nil {
					once.Do(func() { fault = err })
				}
			})
		}
		under.Wait()
		if fault != nil {
			return fault
		}
		r.history.add(event{kind: kindPhase, who: "torture", text: "peace among the processes"})
		pause(ctx, 6*r.config.Lease)
	}
	return nil
}

func (r *run) killAndStart(ctx context.Context, p *process) error {
	r.history.add(event{kind: kindKill, who: p.name})
	p.kill()
	pause(ctx, r.random(0, r.config.Lease/2)) // meanwhile the others go on
	return p.start(context.WithoutCancel(ctx))
}

func (r *run) pauseAndResume(ctx context.Context, p *process) error {
	r.history.add(event{kind: kindPause, who: p.name})
	if !p.pause() {
		return nil
	}
	pause(ctx, r.random(r.config.Lease*5/4, r.config.Lease*3))
	p.resume()
	r.history.add(event{kind: kindResume, who: p.name})
	return nil
}

func (r *run) cutDatabase(g *gatewayChild) error {
	r.history.add(event{kind: kindCut, who: g.process.name, side: database, text: string(cutAll)})
	g.database.cut()
	return nil
}

func (r *run) hold(ctx context.Context, g *gatewayChild, s side, at *gate) error {
	r.history.add(event{kind: kindHold, who: g.process.name, side: s, text: "nothing passes to its " + string(s)})
	at.hold(ctx, r.random(r.config.Lease/4, r.config.Lease*5/2))
	r.history.add(event{kind: kindPass, who: g.process.name, side: s, text: "it passes again to its " + string(s)})
	return nil
}

func (r *run) restartDatabase(ctx context.Context) error {
	r.history.add(event{kind: kindKill, who: "database"})
	if err := r.config.RestartDatabase(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("the database does not start again: %w", err)
	}
	r.history.add(event{kind: kindStart, who: "database"})
	return nil
}

// watch records when this machine makes no progress: a lease that lapses then is not
// a gateway's fault. Like the processes, it waits and writes.
func (r *run) watch(ctx context.Context) error {
	f, err := os.OpenFile(filepath.Join(r.config.Dir, "watch"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const beat = 25 * time.Millisecond
	for ctx.Err() == nil {
		before := time.Now()
		pause(ctx, beat)
		if _, err := f.WriteAt([]byte{0}, 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if took := time.Since(before); took > r.config.Lease/4 {
			r.history.add(event{kind: kindStall, who: "machine", took: took, text: fmt.Sprintf("no progress for %v", took.Round(time.Millisecond))})
		}
	}
	return nil
}
