package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/rpc"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process is the app as the lab sees it: a handler while it is up. Where it is a
// process, it can be killed.
type process struct {
	mu      sync.Mutex
	handler http.Handler
	changed chan struct{} // closed when the handler comes or goes
	starts  int
	busy    int           // requests that are being forwarded
	idle    chan struct{} // closed when there are none any more
	alive   *os.Process
	gone    chan struct{} // closed when that has ended
}

func (p *process) init() {
	p.changed, p.idle = make(chan struct{}), make(chan struct{})
	close(p.idle)
}

// is says what answers from now on, nil for nothing.
func (p *process) is(h http.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
	if h != nil {
		p.starts++
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// up reports whether the app answers, and how often it was started.
func (p *process) up() (up bool, starts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handler != nil, p.starts
}

// crash kills the process and waits until it has ended. It reports false if there is
// none.
func (p *process) crash() bool {
	p.mu.Lock()
	alive, gone := p.alive, p.gone
	p.mu.Unlock()
	if alive == nil || alive.Kill() != nil {
		return false
	}
	<-gone
	return true
}

func (p *process) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == 0 {
		p.idle = make(chan struct{})
	}
	if p.busy += n; p.busy == 0 {
		close(p.idle)
	}
}

// answered waits until no request is being forwarded, but no more than 10 s.
func (p *process) answered() {
	p.mu.Lock()
	idle := p.idle
	p.mu.Unlock()
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	select {
	case <-idle:
	case <-patience.C:
	}
}

// mostPatience is how long a request waits for an app that is being started.
const mostPatience = 20 * time.Second

// forward hands a request to the app.
func (p *process) forward(w http.ResponseWriter, r *http.Request) {
	patience := time.NewTimer(mostPatience)
	defer patience.Stop()
	for {
		p.mu.Lock()
		handler, changed := p.handler, p.changed
		p.mu.Unlock()
		if handler != nil {
			p.count(1)
			defer p.count(-1)
			handler.ServeHTTP(w, r)
			return
		}
		select {
		case <-changed:
		case <-patience.C:
			notNow(w)
			return
		case <-r.Context().Done():
			return
		}
	}
}

func notNow(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	problem(w, http.StatusServiceUnavailable, "The app is being started; nothing was done. A retry is safe.")
}

// proxy hands requests to a process, each once: on a connection of its own, so that
// nothing is sent again by itself.
func proxy(addr string) http.Handler {
	to := &url.URL{Scheme: "http", Host: addr}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		Transport: &http.Transport{DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
				notNow(w)
				return
			}
			panic(http.ErrAbortHandler) // it died, or lost the response: so does the client
		},
	}
}

// supervise starts the app, and again whenever it has ended, until ctx ends. It fails
// if the app does not come up the first time.
func (l *Lab) supervise(ctx context.Context) error {
	for {
		err := l.live(ctx)
		switch _, starts := l.process.up(); {
		case ctx.Err() != nil:
			return nil
		case starts == 0:
			return fmt.Errorf("the app does not start: %w", err)
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
}

// live runs the app's process until it ends, or ctx does. What is under way when ctx
// ends is lost, as in any crash: there is no other way for the app to end.
func (l *Lab) live(ctx context.Context) error {
	var pipes [4]*os.File
	defer func() {
		for _, f := range pipes {
			_ = f.Close() // of nil and of closed ones too
		}
	}()
	for i := 0; i < len(pipes); i += 2 {
		var err error
		if pipes[i], pipes[i+1], err = os.Pipe(); err != nil {
			return err
		}
	}
	cmd := exec.Command(l.config.Command[0], l.config.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0], pipes[3], l.config.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	_, _ = pipes[0].Close(), pipes[3].Close() // the process has them now
	gone := make(chan struct{})
	l.process.mu.Lock()
	l.process.alive, l.process.gone = cmd.Process, gone
	l.process.mu.Unlock()

	server := rpc.NewServer()
	if err := server.RegisterName("Lab", &office{l, gone}); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(pipe{pipes[2], pipes[1]})
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = cmd.Process.Kill() // it may have ended
		err = <-ended
	}
	l.process.mu.Lock()
	l.process.alive = nil
	l.process.mu.Unlock()
	l.process.is(nil)
	close(gone)
	<-served // all that it said is written down
	l.trail.died()
	return err
}

// pipe is a connection made of two.
type pipe struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipe) Close() error                { return errors.Join(p.ReadCloser.Close(), p.w.Close()) }

// office is what a process of the app can ask of its lab, by net/rpc.
type office struct {
	lab  *Lab
	gone chan struct{}
}

// Asked is what First is asked.
type Asked struct {
	What    string
	Attempt Attempt
}

// Nothing is an empty reply.
type Nothing struct{}

// Config tells what the app is to open.
func (o *office) Config(_ Nothing, c *Config) error {
	*c = Config{Path: o.lab.config.Path, Postgres: o.lab.config.Postgres}
	return nil
}

// Ready: the app answers at an address.
func (o *office) Ready(addr string, _ *Nothing) error {
	o.lab.process.is(proxy(addr))
	o.lab.Settled()
	return nil
}

// Hold answers when the process has ended. So a process notices the end of its lab.
func (o *office) Hold(Nothing, *Nothing) error {
	<-o.gone
	return nil
}

// Switches, First, Tell, Arrive and Settled are those of the lab.
func (o *office) Switches(operation string, s *Switches) error {
	*s = o.lab.Switches(operation)
	return nil
}

// First is that of the lab.
func (o *office) First(a Asked, first *bool) error {
	*first = o.lab.First(a.What, a.Attempt)
	return nil
}

// Tell is that of the lab.
func (o *office) Tell(a Attempt, _ *Nothing) error { o.lab.Tell(a); return nil }

// Arrive is that of the lab.
func (o *office) Arrive(m Mail, _ *Nothing) error { o.lab.Arrive(m); return nil }

// Settled is that of the lab.
func (o *office) Settled(Nothing, *Nothing) error { o.lab.Settled(); return nil }

// atLab is the lab as a process of the app sees it.
type atLab struct{ client *rpc.Client }

// call asks the lab. Where there is none any more, nothing goes on: RunApp ends.
func (r atLab) call(what string, args, reply any) {
	if err := r.client.Call("Lab."+what, args, reply); err != nil {
		select {}
	}
}

func (r atLab) Switches(operation string) (s Switches) {
	r.call("Switches", operation, &s)
	return s
}

func (r atLab) First(what string, a Attempt) (first bool) {
	r.call("First", Asked{what, a}, &first)
	return first
}

func (r atLab) Tell(a Attempt) { r.call("Tell", a, &Nothing{}) }
func (r atLab) Arrive(m Mail)  { r.call("Arrive", m, &Nothing{}) }
func (r atLab) Settled()       { r.call("Settled", Nothing{}, &Nothing{}) }

// RunApp is the app in a process of its own: it asks the lab at the other end of in
// and out for what it needs, serves it on a free port of this host, and returns when
// the lab is gone.
func RunApp(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lab := atLab{rpc.NewClient(pipe{in, out})}
	var c Config
	if err := lab.client.Call("Lab.Config", Nothing{}, &c); err != nil {
		return fmt.Errorf("there is no lab that this is the app of: %w", err)
	}
	p, err := openApp(ctx, c, lab)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, p.Close())
	}
	safe := http.NewCrossOriginProtection().Handler(p.handler()) // a page could find the port
	server := &http.Server{Handler: safe, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- p.run(ctx) }()
	held := lab.client.Go("Lab.Hold", Nothing{}, &Nothing{}, nil)
	switch err := lab.client.Call("Lab.Ready", listener.Addr().String(), &Nothing{}); {
	case errors.Is(err, rpc.ErrShutdown), errors.Is(err, io.ErrUnexpectedEOF):
		return nil // the lab is gone already
	case err != nil:
		return err
	}
	select {
	case err = <-failed:
		return err
	case <-held.Done:
		return nil
	}
}
