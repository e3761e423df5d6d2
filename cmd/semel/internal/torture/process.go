package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is a child that can be killed, paused and started again. Each start gets
// another address, with which follow is called.
type process struct {
	name    string
	binary  string
	args    []string
	env     []string // in addition to that of this process
	says    string   // printed before its address when it listens
	history *history
	follow  func(addr string)

	busy sync.Mutex // held while something strikes it

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{}
	paused bool
}

const (
	startTimeout = 20 * time.Second
	didNotStart  = "did not start: "
)

// start starts the process and returns when it listens. It tries again for a while,
// because a program may need its database, which may be down, to start.
func (p *process) start(ctx context.Context) error {
	for end := time.Now().Add(startTimeout); ; pause(ctx, 100*time.Millisecond) {
		err := p.startOnce(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		p.history.add(event{kind: kindLog, who: p.name, text: didNotStart + err.Error()})
	}
}

func (p *process) startOnce(ctx context.Context) error {
	cmd := exec.Command(p.binary, p.args...)
	cmd.SysProcAttr = childAttr()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SEMEL_") { // they would change its settings
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, p.env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended, p.paused = cmd, ended, false
	p.mu.Unlock()
	listens := make(chan string, 1)
	go func() {
		defer close(ended)
		p.read(stderr, listens)
		_ = cmd.Wait()
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case addr := <-listens:
		p.follow(addr)
		p.history.add(event{kind: kindStart, who: p.name, text: fmt.Sprintf("process %d listens on %s", cmd.Process.Pid, addr)})
		return nil
	case <-ended:
		return fmt.Errorf("%s ended before it listened", p.name)
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = fmt.Errorf("%s does not listen after %v", p.name, startTimeout)
	}
	_ = cmd.Process.Kill()
	<-ended
	return err
}

// read adds what the process prints to the history.
func (p *process) read(r io.Reader, listens chan<- string) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := in.Text()
		if _, addr, ok := strings.Cut(line, p.says); ok {
			select {
			case listens <- strings.TrimPrefix(addr, "http://"):
			default:
			}
			continue
		}
		if strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "            ") {
			continue // its settings
		}
		p.history.add(event{kind: kindLog, who: p.name, text: line})
	}
	_, _ = io.Copy(io.Discard, r)
}

// kill ends the process like a crash, even if it is paused.
func (p *process) kill() {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	<-ended
}

// pause stops the process until resume. It reports whether it could.
func (p *process) pause() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = suspend(p.cmd.Process)
	return p.paused
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		proceed(p.cmd.Process)
		p.paused = false
	}
}

// terminate asks the process to shut down, and returns an error if it did not.
func (p *process) terminate(patience time.Duration) error {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	if !askToEnd(cmd.Process) {
		p.kill()
		return nil
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-ended:
		if !cmd.ProcessState.Success() {
			return fmt.Errorf("%s ended with %v", p.name, cmd.ProcessState)
		}
		return nil
	case <-timeout.C:
		p.kill()
		return errors.New(p.name + " did not end when it was asked to")
	}
}
