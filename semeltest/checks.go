package semeltest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/semelhq/semel/semelhttp"
)

// begin prepares a new operation and counts the effects before it.
func (s *subject) begin() (*message, int, error) {
	before, err := s.effects()
	if err != nil {
		return nil, 0, err
	}
	m, err := s.message()
	if err != nil {
		return nil, 0, err
	}
	if s.process == nil {
		err = s.start()
	}
	return m, before, err
}

// repeat: a request sent again is answered as before, and has no other effect.
func repeat(ctx context.Context, s *subject) error {
	m, before, err := s.begin()
	if err != nil {
		return err
	}
	first, err := s.settled(ctx, m)
	if err != nil {
		return err
	}
	if err := s.expect(before+1, "sent once"); err != nil {
		return err
	}
	for range 3 {
		if err := s.replays(ctx, m, first); err != nil {
			return err
		}
	}
	return s.expect(before+1, "sent 4 times")
}

// replays sends m again and compares the answer with the first.
func (s *subject) replays(ctx context.Context, m *message, first *answer) error {
	again, err := s.settled(ctx, m)
	if err != nil {
		return err
	}
	if diff := again.differs(first); diff != "" {
		return fmt.Errorf("answered with %s, and before with %s: %s", again, first, diff)
	}
	if again.header.Get(semelhttp.HeaderReplayed) != "true" {
		return fmt.Errorf("answered with %s that is not marked as replayed", again)
	}
	return nil
}

const many = 10

// parallel: of many requests with one key at once, one has its effect, and all
// come to the same answer. The one that executes waits until all have asked.
func parallel(ctx context.Context, s *subject) error {
	m, before, err := s.begin()
	if err != nil {
		return err
	}
	p := s.process
	returned := make(map[int]bool) // under p.mu
	overlap := true
	arrived := func() bool {
		for i := range many {
			if !p.begun[i] && !returned[i] {
				return false
			}
		}
		return true
	}
	limit, cancel := context.WithTimeout(ctx, s.patience/2)
	defer cancel()
	p.set(func() {
		p.begun = make(map[int]bool)
		p.executing = func() {
			if p.await(limit, arrived) != nil {
				p.set(func() { overlap = false })
			}
		}
	})
	var (
		wg      sync.WaitGroup
		answers [many]*answer
		errs    [many]error
		start   = make(chan struct{})
	)
	for i := range many {
		wg.Go(func() {
			defer p.set(func() { returned[i] = true })
			<-start
			answers[i], errs[i] = s.send(context.WithValue(ctx, requestKey{}, i), m, nil)
		})
	}
	close(start)
	wg.Wait()
	p.set(func() { p.executing = nil })
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := s.expect(before+1, fmt.Sprintf("sent %d times at once", many)); err != nil {
		return err
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if !overlap {
		return inconclusive("the requests did not all reach the store while the first was under way")
	}
	final, err := s.settled(ctx, m)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.again() {
			continue // and then it is answered with final
		}
		if diff := a.differs(final); diff != "" {
			return fmt.Errorf("one of %d at once was answered with %s, and a later one with %s: %s", many, a, final, diff)
		}
	}
	return s.expect(before+1, "asked for the result")
}

// quiet waits until no claim is open.
func (s *subject) quiet(ctx context.Context) error {
	p := s.process
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if err := p.await(ctx, func() bool { return p.open == 0 }); err != nil {
		return fmt.Errorf("an execution does not end within %v", s.patience)
	}
	return nil
}

// altered: another request under the same key is refused and has no effect,
// and what is on record stays.
func altered(ctx context.Context, s *subject) error {
	m, before, err := s.begin()
	if err != nil {
		return err
	}
	other := m.altered()
	if s.Altered != nil {
		r, err := s.Altered(m.key)
		if other, err = render(m.key, r, err); err != nil {
			return err
		}
	}
	first, err := s.settled(ctx, m)
	if err != nil {
		return err
	}
	a, err := s.settled(ctx, other)
	if err != nil {
		return err
	}
	if err := s.expect(before+1, "sent, and then something else under the same key"); err != nil {
		return err
	}
	if !a.is(semelhttp.ProblemKeyMismatch) {
		return fmt.Errorf("another request under the same key was answered with %s; want %s", a, semelhttp.ProblemKeyMismatch)
	}
	if err := s.replays(ctx, m, first); err != nil {
		return err
	}
	return s.expect(before+1, "sent again after something else was refused")
}

// lostAnswer: a client that goes away, while the request executes or when its
// answer comes, and sends it again, has caused one effect.
func lostAnswer(ctx context.Context, s *subject) error {
	for _, when := range []string{"while the request executes", "when the answer comes"} {
		m, before, err := s.begin()
		if err != nil {
			return err
		}
		what := "the client went away " + when + ", and sent the request again"
		p := s.process
		client, leave := context.WithCancel(ctx)
		executing := strings.HasPrefix(when, "while")
		left := false
		p.set(func() {
			p.executing = func() {
				if executing {
					leave()
					p.set(func() { left = true })
				}
			}
		})
		_, err = s.send(client, m, func() {
			leave()
			if !executing {
				p.set(func() { left = true })
			}
		})
		leave()
		p.set(func() { p.executing = nil })
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := s.quiet(ctx); err != nil {
			return err
		}
		a, err := s.settled(ctx, m)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if a.is(semelhttp.ProblemOutcomeUnknown) {
			return fmt.Errorf("%s: answered with %s", what, a)
		}
		if err := s.expect(before+1, what); err != nil {
			return err
		}
		if err := s.replays(ctx, m, a); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := s.expect(before+1, what+" twice"); err != nil {
			return err
		}
		if !left {
			return inconclusive("the client did not go away %s", when)
		}
	}
	return nil
}

// crash: the process dies at each point around its calls of the store; then
// another serves the request when it is sent again. There is never a second
// effect, and never an answer that tells of one that is not there.
func crash(ctx context.Context, s *subject) error {
	settled := false
	for n := 1; ; n++ {
		s.stop()
		m, before, err := s.begin()
		if err != nil {
			return err
		}
		p := s.process
		p.set(func() { p.die = n })
		first, err := s.send(ctx, m, nil)
		if err != nil {
			return fmt.Errorf("point %d: %w", n, err)
		}
		var points []string
		p.set(func() { points, p.die = p.points, 0 })
		if len(points) < n { // it has lived
			if n < 4 || !settled {
				return inconclusive("the request passed only %q", points)
			}
			if first.status == 0 {
				return inconclusive("without a crash there is no answer")
			}
			return nil
		}
		what := fmt.Sprintf("the process died %s (point %d), and the request was sent again", points[n-1], n)
		if strings.HasPrefix(points[n-1], "after complete") {
			settled = true
		}
		s.stop()
		if err := s.Advance(s.Lease + 1); err != nil {
			return inconclusive("advance: %w", err)
		}
		if err := s.afterCrash(ctx, m, before); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

func (s *subject) afterCrash(ctx context.Context, m *message, before int) error {
	a, err := s.settled(ctx, m)
	if err != nil {
		return err
	}
	after, err := s.effects()
	if err != nil {
		return err
	}
	switch n := after - before; {
	case n > 1 || n < 0:
		return fmt.Errorf("answered with %s; %d effects", a, n)
	case a.is(semelhttp.ProblemOutcomeUnknown):
		if s.Transactional {
			return fmt.Errorf("answered with %s, though claims live in transactions", a)
		}
	case n == 0:
		return fmt.Errorf("answered with %s; no effect", a)
	default:
		if err := s.replays(ctx, m, a); err != nil {
			return err
		}
	}
	if _, err := s.settled(ctx, m); err != nil {
		return err
	}
	return s.expect(after, "sent once more")
}
