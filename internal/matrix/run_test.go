package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// Bounds of the protection, small enough for each shape to be cheap.
const (
	maxInline = 1 << 10
	maxResult = semel.PieceBytes + 20<<10
	maxSpool  = 64 << 10 // where it is to be reached; one may have a quarter
)

// run is one cell.
type run struct {
	subject *subject
	cell    cell
	key     string
	ctx     context.Context // of what must not hang

	mu       sync.Mutex
	problems []string
	kill     func() error
	end      sync.Once

	outer atomic.Pointer[context.Context] // of the first request, as its server has it
	quit  context.CancelFunc              // has the first client leave
	left  atomic.Bool

	execs    atomic.Int32
	started  chan struct{} // the first execution is in the middle of its answer
	goOn     chan struct{} // and may go on
	returned atomic.Bool   // and has

	served   chan struct{} // nobody is at the first request any more
	recorded atomic.Bool   // what it came to is durable
	early    atomic.Bool   // its answer left before that

	failed   atomic.Int32 // calls that met the fault
	failing  chan struct{}
	failOnce sync.Once
	held     chan struct{}
	heldOnce sync.Once
	mended   atomic.Bool
}

func (r *run) wrong(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func (r *run) await(what string, c <-chan struct{}) {
	select {
	case <-c:
	case <-r.ctx.Done():
		r.wrong("waited in vain for %s", what)
	}
}

// leave has the first client leave, if this is when it does, and waits until
// its server knows.
func (r *run) leave(when client) {
	if r.cell.client != when || r.left.Swap(true) {
		return
	}
	r.quit()
	r.await("the server to see that its client has left", (*r.outer.Load()).Done())
}

// settles is called when the store is about to be told.
func (r *run) settles() {
	if r.returned.Load() {
		r.leave(leavesAfter)
	}
}

func (r *run) fails() { r.failOnce.Do(func() { close(r.failing) }) }
func (r *run) holds() { r.heldOnce.Do(func() { close(r.held) }) }

func (r *run) endSession() (err error) {
	r.end.Do(func() { err = r.kill() })
	return err
}

// body is what an execution answers.
func (c cell) body(status, exec int) []byte {
	n := 200
	switch c.shape {
	case large:
		n = semel.PieceBytes + 1000
	case over:
		n = maxResult + 1000
	case spoolFails:
		n = 20 << 10
	case spoolFull:
		n = 3 * maxSpool
	case stream:
		return fmt.Appendf(nil, "data: %d of %d\n\ndata: more of %d\n\ndata: end of %d\n\n", status, exec, exec, exec)
	}
	unit := fmt.Appendf(nil, "%d/%d/%v. ", status, exec, c.shape)
	return bytes.Repeat(unit, n/len(unit)+1)[:n]
}

// execute is the handler.
func (r *run) execute(w http.ResponseWriter, req *http.Request) {
	c, s := r.cell, r.subject
	exec := int(r.execs.Add(1))
	first := exec == 1
	if first {
		defer r.returned.Store(true)
	}
	status := 201
	if first {
		status = c.status(s.kind)
	}
	ctx := req.Context()
	undisturbed := context.WithoutCancel(ctx)

	if first && c.ending == noEffect {
		semelhttp.DeclareNoEffect(ctx, nil)
	}
	changes := !first || c.ending != noEffect || s.transactional
	if changes {
		if err := s.effect(undisturbed, r.key, exec, 1); err != nil {
			r.wrong("the first half of the effect: %v", err)
		}
	}
	if first && s.sessions && s.transactional {
		kill, err := s.session(undisturbed)
		if err != nil {
			r.wrong("%v", err)
		}
		r.kill = kill
	}

	h := w.Header()
	h.Set("X-Exec", strconv.Itoa(exec))
	switch c.shape {
	case stream:
		h.Set("Content-Type", "text/event-stream")
	case trailers:
		h.Set("Trailer", "X-Sum")
	}
	w.WriteHeader(status)
	body := c.body(status, exec)
	half := len(body) / 2
	for piece := range slices.Chunk(body[:half], 7000) {
		_, _ = w.Write(piece)
	}
	if c.shape == stream {
		w.(http.Flusher).Flush()
	}

	if first {
		close(r.started)
		select {
		case <-r.goOn:
		case <-r.ctx.Done():
		}
		if c.fault.call == renew && c.rival == duplicate {
			r.await("a renewal to fail", r.failing)
			if c.fault.how == down {
				r.await("the lease to lapse", ctx.Done())
			}
		}
		if err := context.Cause(ctx); err != nil && !r.cutShort() && c.rival != inherits { // a renewal may find the session gone
			r.wrong("the handler's context has ended: %v", err)
		}
		switch c.ending {
		case indeterminate:
			semelhttp.DeclareIndeterminate(ctx, "asked to")
		case panics:
			panic("asked to")
		case exits:
			runtime.Goexit()
		case deadline:
			r.await("the deadline", ctx.Done())
		case overruns:
			r.await("the guard to give the execution up", r.held)
			if s.virtual {
				// Until it has done so, it would be waited for at a lock, and
				// virtual time stands still for who does that.
				<-time.After(2 * r.policy(semel.CrashHold).Lease)
			}
		}
	}
	switch {
	case first && c.ending == noEffect:
	case first && c.ending == deadline && s.transactional:
		if err := s.effect(ctx, r.key, exec, 2); err == nil {
			r.wrong("the second half of the effect came about after the deadline")
		}
	default:
		if err := s.effect(undisturbed, r.key, exec, 2); err != nil && !(first && r.lostSession()) {
			r.wrong("the second half of the effect: %v", err)
		}
	}
	_, _ = w.Write(body[half:])
	switch c.shape {
	case stream:
		w.(http.Flusher).Flush()
	case trailers:
		h.Set("X-Sum", strconv.Itoa(exec))
		h.Set(http.TrailerPrefix+"X-Late", strconv.Itoa(exec))
	}
}

// lostSession reports whether the first execution's transaction is gone by its
// end.
func (r *run) lostSession() bool {
	return r.cell.rival == inherits || r.cell.ending == overruns && r.subject.transactional
}

// cutShort reports whether the first execution may be told to end before it is in
// the middle of its answer.
func (r *run) cutShort() bool {
	return r.cell.rival == marks || r.cell.rival == takesOver || r.cell.fault.call == renew && r.cell.fault.how == down ||
		!r.subject.virtual && (r.cell.ending == deadline || r.cell.ending == overruns)
}

// outermost is what a server has around everything else.
type outermost struct {
	next  http.Handler
	run   *run
	first bool
	open  sync.WaitGroup
}

func (o *outermost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.open.Add(1)
	defer o.open.Done()
	if !o.first || !o.run.outer.CompareAndSwap(nil, new(r.Context())) {
		o.next.ServeHTTP(w, r)
		return
	}
	defer close(o.run.served)
	o.next.ServeHTTP(&firstWriter{ResponseWriter: w, run: o.run}, r)
}

// firstWriter notes whether the first execution's answer leaves too early.
type firstWriter struct {
	http.ResponseWriter
	run *run
}

func (w *firstWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *firstWriter) WriteHeader(status int) {
	if w.Header().Get("X-Exec") == "1" && !w.run.recorded.Load() {
		w.run.early.Store(true)
	}
	w.ResponseWriter.WriteHeader(status)
}

// process is one process of a service.
type process struct {
	guard  *semel.Guard
	outer  *outermost
	server *http.Server
	listen net.Listener
	served chan struct{}
}

func (r *run) policy(onCrash semel.CrashPolicy) semel.Policy {
	p := semel.Policy{Lease: 15 * time.Second, Deadline: time.Minute, OnCrash: onCrash}
	if r.subject.transactional && r.subject.virtual {
		// SQLite asks again and again for a lock that is held, in no time.
		p = semel.Policy{Lease: time.Second, Deadline: 2 * time.Second, OnCrash: onCrash}
	}
	if !r.subject.virtual {
		p = semel.Policy{Lease: 10 * time.Second, Deadline: 30 * time.Second, OnCrash: onCrash}
		if r.cell.rival != duplicate || r.cell.fault.how == down {
			p.Lease = time.Second
		}
		// With room for a machine that is busy: it is at the deadline that one
		// of these has to return, and after it and a heartbeat the other.
		switch r.cell.ending {
		case deadline:
			p.Lease, p.Deadline = 9*time.Second, time.Second
		case overruns:
			p.Lease, p.Deadline = 3*time.Second, time.Second
		}
	}
	return p
}

// cipher encrypts the results of every other key, those of the first process with
// another key than those of the others.
func (r *run) cipher(first bool) (*semel.Cipher, error) {
	if r.key[len(r.key)-1]%2 == 0 {
		return nil, nil
	}
	a := semel.EncryptionKey{Name: "a", Secret: bytes.Repeat([]byte("a"), 32)}
	b := semel.EncryptionKey{Name: "b", Secret: bytes.Repeat([]byte("b"), 32)}
	if !first {
		a, b = b, a
	}
	return semel.NewCipher(a, b)
}

func (r *run) start(net network, s store, onCrash semel.CrashPolicy, spools *semelhttp.Spools, first bool) (*process, error) {
	cipher, err := r.cipher(first)
	if err != nil {
		return nil, err
	}
	guard, err := semel.New(semel.Config{Store: s, Policy: r.policy(onCrash), Cipher: cipher})
	if err != nil {
		return nil, err
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard:  guard,
		Scope:  func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice", Operation: "orders"}, nil },
		Spools: spools, MaxInline: maxInline, MaxResult: maxResult,
	})
	if err != nil {
		return nil, err
	}
	h := protect(http.HandlerFunc(r.execute))
	if r.subject.around != nil {
		h = r.subject.around(h, r)
	}
	p := &process{guard: guard, outer: &outermost{next: h, run: r, first: first}, served: make(chan struct{})}
	p.server = &http.Server{Handler: p.outer, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)}
	p.server.Protocols.SetHTTP1(true)
	p.server.Protocols.SetUnencryptedHTTP2(r.cell.http2)
	if p.listen, err = net.listen(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(p.listen)
	}()
	return p, nil
}

// stop ends the process in order and says what it could not end.
func (p *process) stop(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	<-p.served
	over := make(chan struct{})
	go func() {
		p.outer.open.Wait() // Shutdown does not, for streams of HTTP/2 that were reset
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
		err = errors.Join(err, errors.New("a request is still being served"))
	}
	return errors.Join(err, p.guard.Drain(ctx))
}

// saw is what a client saw.
type saw struct {
	told
	retryAfter string
	expires    bool
	detail     string // what is wrong with it, or of interest
}

// ask sends the request to p as a client of its own.
func (r *run) ask(ctx context.Context, net network, p *process, prefer string) saw {
	t := &http.Transport{
		DialContext:       dialer(net, p.listen),
		DisableKeepAlives: true, DisableCompression: true,
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(!r.cell.http2)
	t.Protocols.SetUnencryptedHTTP2(r.cell.http2)
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop.example/orders", strings.NewReader(`{"item":"book"}`))
	if err != nil {
		return saw{detail: err.Error()}
	}
	req.GetBody = nil
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(semelhttp.HeaderKey, r.key)
	if prefer != "" {
		req.Header.Set("Prefer", prefer)
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return saw{told: told{what: cut}, detail: err.Error()}
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return saw{told: told{what: cut}, detail: err.Error()}
	}
	s := saw{retryAfter: resp.Header.Get("Retry-After"), expires: resp.Header.Get(semelhttp.HeaderExpires) != ""}
	s.status = resp.StatusCode
	if exec := resp.Header.Get("X-Exec"); exec != "" {
		s.exec, _ = strconv.Atoi(exec)
		s.what = own
		if resp.Header.Get(semelhttp.HeaderReplayed) == "true" {
			s.what = replayed
		}
		if want := r.cell.body(s.status, s.exec); !bytes.Equal(body, want) {
			s.detail = fmt.Sprintf("a body of %d bytes looks whole and is not the handler's of %d bytes", len(body), len(want))
		}
		if r.cell.shape == trailers && (resp.Trailer.Get("X-Sum") != exec || resp.Trailer.Get("X-Late") != exec) {
			s.detail = fmt.Sprintf("the trailers are %v", resp.Trailer)
		}
		return s
	}
	if strings.HasPrefix(string(body), outers) {
		s.what = outers
		return s
	}
	p9, err := semelhttp.ParseProblem(bytes.NewReader(body), resp.Header.Get("Content-Type"))
	if err != nil {
		s.detail = fmt.Sprintf("neither the handler's answer nor a problem: %q", body[:min(len(body), 100)])
		return s
	}
	_, s.what, _ = strings.Cut(p9.Type, "#")
	if s.what == "" && strings.Contains(p9.Detail, "had no effect") {
		s.what = dropped
	}
	return s
}

func dialer(n network, l net.Listener) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(ctx, l) }
}

// play plays the cell and returns what is wrong.
func play(ctx context.Context, net network, s *subject, c cell, key, dir string) []string {
	ctx, cancel := context.WithTimeout(ctx, map[bool]time.Duration{true: time.Hour, false: time.Minute}[s.virtual])
	defer cancel()
	r := &run{
		subject: s, cell: c, key: key, ctx: ctx,
		started: make(chan struct{}), goOn: make(chan struct{}), failing: make(chan struct{}), held: make(chan struct{}),
		served: make(chan struct{}),
	}
	if err := r.play(net, dir); err != nil {
		r.wrong("%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems
}

func (r *run) play(net network, dir string) error {
	c, s, ctx := r.cell, r.subject, r.ctx
	spools, err := r.spools(dir)
	if err != nil {
		return err
	}
	onCrash := semel.CrashHold
	if c.rival == takesOver {
		onCrash = semel.CrashRetry
	}
	a, err := r.start(net, &faulty{store: s.store, run: r}, onCrash, spools, true)
	if err != nil {
		return err
	}
	b, err := r.start(net, s.store, onCrash, spools, false)
	if err != nil {
		return err
	}

	// The first request, and whoever comes while it is being executed.
	firstCtx, quit := context.WithCancel(ctx)
	defer quit()
	r.quit = quit
	answered := make(chan saw, 1)
	go func() { answered <- r.ask(firstCtx, net, a, "") }()
	var first saw
	done := false
	for !done {
		select {
		case <-r.started:
			r.meet(net, a, b)
			r.leave(leavesDuring)
			close(r.goOn)
			first, done = <-answered, true
		case first = <-answered:
			done = true
			if c.client != leavesBefore {
				break
			}
			if begin := c.fault.call == begin && c.fault.how == down; !begin {
				done = false
				answered <- first // the handler is yet to begin
				r.await("the handler to begin without its client", r.started)
			}
		case <-ctx.Done():
			return errors.New("the first request hangs")
		}
	}
	if r.execs.Load() == 0 {
		close(r.goOn) // for who asks again
	}
	r.await("the first request's goroutine", r.served)
	r.mended.Store(true)

	// What is so now, and what who asks again is told.
	before, err := s.effects(r.key)
	if err != nil {
		return err
	}
	record, err := s.store.Find(ctx, semel.Identity{Scope: semel.Scope{Actor: "alice", Operation: "orders"}, Key: r.key})
	if err != nil && !errors.Is(err, semel.ErrNotFound) {
		return err
	}
	retry := r.ask(ctx, net, b, "")
	if retry.what == string(semelhttp.ProblemInProgress) && r.strands() {
		retry = r.ask(ctx, net, b, "wait=30")
	}
	after, err := s.effects(r.key)
	if err != nil {
		return err
	}
	r.compare(first, retry)
	r.check(first, retry, before, after, record)

	if err := errors.Join(a.stop(ctx), b.stop(ctx)); err != nil {
		r.wrong("at the end: %v", err)
	}
	if n := spools.Used(); n != 0 {
		r.wrong("spools hold %d bytes when all is over", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		r.wrong("the spools' directory has %v, %v", left, err)
	}
	return nil
}

func (r *run) spools(dir string) (*semelhttp.Spools, error) {
	c := semelhttp.SpoolsConfig{Dir: dir}
	switch r.cell.shape {
	case spoolFails:
		gone, err := os.MkdirTemp(dir, "")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.Remove(gone) }()
		c.Dir = gone
	case spoolFull:
		c.MaxBytes = maxSpool
	}
	return semelhttp.NewSpools(c)
}

// strands reports whether the first request can leave a record in progress that
// nobody is at, for the rest of its lease or until the guard has seen to it.
func (r *run) strands() bool {
	f := r.cell.fault
	return f.how == down && (!r.subject.transactional || f.call == begin)
}

// meet has the rival ask.
func (r *run) meet(net network, a, b *process) {
	c := r.cell
	var got saw
	var want told
	switch c.rival {
	case duplicate:
		// Of one and of the other process.
		want = told{what: string(semelhttp.ProblemInProgress), status: 409}
		if got = r.ask(r.ctx, net, a, ""); got.told == want && got.retryAfter != "" {
			got = r.ask(r.ctx, net, b, "")
		}
		if got.retryAfter == "" {
			r.wrong("the duplicate is not told when to come back")
		}
	case marks:
		want = told{what: unknown, status: 409}
		got = r.ask(r.ctx, net, b, "wait=30")
	case takesOver:
		want = c.executed(r.subject.kind, 2, 201)
		got = r.ask(r.ctx, net, b, "wait=30")
	case inherits:
		if err := r.endSession(); err != nil {
			r.wrong("%v", err)
		}
		want = c.executed(r.subject.kind, 2, 201)
		got = r.ask(r.ctx, net, b, "")
	}
	if got.told != want {
		r.wrong("the rival is told: %v (%s); want %v", got.told, got.detail, want)
	}
}

// compare holds what was told to the model.
func (r *run) compare(first, retry saw) {
	wantFirst, wantRetry := r.cell.expect(r.subject.kind)
	if wantFirst.what == freed { // on the wire only the record's expiry tells the two apart
		wantFirst.what = own
		if first.expires {
			r.wrong("an answer of no effect says when its record expires")
		}
	}
	if first.told != wantFirst && r.cell.client == stays {
		r.wrong("the first client is told: %v (%s); want %v", first.told, first.detail, wantFirst)
	}
	if retry.told != wantRetry {
		r.wrong("who asks again is told: %v (%s); want %v", retry.told, retry.detail, wantRetry)
	}
	for _, s := range []saw{first, retry} {
		if s.detail != "" && s.what != cut {
			r.wrong("an answer is wrong: %s", s.detail)
		}
	}
}

// check holds what happened to what must never happen, whatever the model says.
func (r *run) check(first, retry saw, before, after map[int]int, record semel.Record) {
	c, k := r.cell, r.subject.kind
	full := func(effects map[int]int) (n int) {
		for exec, halves := range effects {
			switch halves {
			case 2:
				n++
			default:
				r.wrong("execution %d has left %d halves of its effect", exec, halves)
			}
		}
		return n
	}
	most := 1
	if c.rival == takesOver {
		most = 2 // which is what the policy says, and why it is not the default
	}
	nBefore, nAfter := full(before), full(after)
	if nAfter > most {
		r.wrong("%d effects", nAfter)
	}
	if k.transactional && nBefore > 0 && record.State != semel.StateCompleted {
		r.wrong("there is an effect and the record is %v", record.State)
	}
	if cipher, _ := r.cipher(true); record.State == semel.StateCompleted && (cipher != nil) != strings.HasPrefix(record.Result.Codec, "encrypted/") {
		r.wrong("the codec on record is %q", record.Result.Codec)
	}
	if k.transactional && c.rival == duplicate && record.State == semel.StateCompleted {
		if want := c.status(k) < 400; want != (before[1] == 2) {
			r.wrong("%d is on record, and there is %v", c.status(k), before)
		}
	}
	_, passes := c.passes(k)
	if r.early.Load() && !passes && !(c.fault.call == release && c.fault.how == down) {
		r.wrong("bytes of the answer have left before it was on record")
	}
	switch first.what {
	case own:
		switch {
		case first.expires || passes && r.expectsRecord():
			if record.State != semel.StateCompleted {
				r.wrong("the first client has its answer, and the record is %v", record.State)
			}
			if first.status < 400 && nBefore != 1 {
				r.wrong("the first client is told %d, and there are %d effects", first.status, nBefore)
			}
			if same := retry.what == replayed && retry.exec == first.exec && retry.status == first.status; !same && retry.what != notRetained {
				r.wrong("the first client has its answer, and who asks again is told %v", retry.told)
			}
		case before[1]+after[1] != 0:
			r.wrong("the first client is told that there was no effect, and there is %v, then %v", before, after)
		}
	case undone, dropped, outers:
		if before[1] != 0 || after[1] != 0 {
			r.wrong("the first client is told of no effect, and there is %v, then %v", before, after)
		}
	case unavailable:
		if r.execs.Load() == 0 && nBefore != 0 {
			r.wrong("nothing was executed, and there are effects: %v", before)
		}
	case unknown:
		if record.State != semel.StateUnknown {
			r.wrong("the first client is told that the outcome is unknown, and the record is %v", record.State)
		}
	}
	if first.what != own && first.what != replayed && first.what != cut && first.what != notRetained && first.what != dropped && first.status < 500 {
		r.wrong("a failure of one's own is told with %d", first.status)
	}
	if retry.what == unknown && retry.status != 409 {
		r.wrong("somebody else's unknown outcome is told with %d", retry.status)
	}
}

// expectsRecord reports whether the model has the first execution recorded.
func (r *run) expectsRecord() bool {
	first, _ := r.cell.expect(r.subject.kind)
	return first.what == own
}
