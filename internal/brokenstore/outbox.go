package brokenstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/memory"
)

// Outbox is an outbox with one defect.
type Outbox struct {
	Name string
	// What is wrong.
	What string
	// Breaks names rules of outboxtest that must notice. Others may as well.
	Breaks []string

	change func(*postOffice)
}

// Harness sets up a fresh outbox. It must run in a bubble.
func (b Outbox) Harness() outboxtest.Harness {
	o := memory.NewOutbox()
	p := &postOffice{
		Outbox: o, enqueue: o.Enqueue, exchange: o.Exchange, mark: o.Mark, renew: o.Renew, status: o.Status,
		sweep: o.Sweep, list: o.List, redrive: o.Redrive, decide: o.Decide, purge: o.Purge, last: map[uint64]outbox.Claimed{},
	}
	if b.change != nil {
		b.change(p)
	}
	return outboxtest.Harness{
		Store: p, Enqueue: func(ctx context.Context, m ...outbox.Message) error { return p.enqueue(ctx, m...) },
		Advance: time.Sleep, Open: func() outboxtest.Store { return p },
	}
}

// CorrectOutbox sets up the outbox that the broken ones differ from.
func CorrectOutbox() outboxtest.Harness { return Outbox{}.Harness() }

// Outboxes returns all broken outboxes.
func Outboxes() []Outbox {
	sweeps := func(state outbox.State) func(*postOffice) {
		return func(p *postOffice) {
			sweep := p.sweep
			p.sweep = func(ctx context.Context, r outbox.Retention, limit int) (int, error) {
				n, err := sweep(ctx, r, limit)
				gone, _ := p.Outbox.Purge(ctx, outbox.Filter{State: state})
				return n + len(gone), err
			}
		}
	}
	return []Outbox{
		{
			Name: "fence-ignored", What: "who had the message before settles the claim of who has it now",
			Breaks: []string{"a-stale-claim-changes-nothing", "of-a-settlement-and-a-claim-after-the-lease-one-has-the-message"},
			change: func(p *postOffice) {
				p.settlement(func(s *outbox.Settlement) { s.Ref = p.latest(s.Ref) })
				p.remember()
			},
		},
		{
			Name: "origin-of-others", What: "the messages of one origin are listed with those of others",
			Breaks: []string{"origins-are-kept-and-found"},
			change: func(p *postOffice) {
				list := p.list
				p.list = func(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
					f.Origin = ""
					return list(ctx, f)
				}
			},
		},
		{
			Name: "renewal-ignores-fence", What: "a renewal by who had the message before keeps the claim of who has it now alive",
			Breaks: []string{"a-stale-claim-changes-nothing"},
			change: func(p *postOffice) {
				p.remember()
				renew := p.renew
				p.renew = func(ctx context.Context, lease time.Duration, refs []outbox.Ref) ([]outbox.Ref, error) {
					return renew(ctx, lease, p.latestOf(refs))
				}
			},
		},
		{
			Name: "mark-ignores-fence", What: "who had the message before marks the claim of who has it now",
			Breaks: []string{"a-stale-claim-changes-nothing"},
			change: func(p *postOffice) {
				p.remember()
				mark := p.mark
				p.mark = func(ctx context.Context, ref outbox.Ref) error { return mark(ctx, p.latest(ref)) }
			},
		},
		{
			Name: "no-new-fence", What: "who claims a message whose lease is over gets the fence that it had before",
			Breaks: []string{"a-leased-message-is-not-claimed-again-before-its-lease-is-over"},
			change: func(p *postOffice) {
				p.remember()
				p.settlement(func(s *outbox.Settlement) { s.Ref = p.latest(s.Ref) })
				mark, renew := p.mark, p.renew
				p.mark = func(ctx context.Context, ref outbox.Ref) error { return mark(ctx, p.latest(ref)) }
				p.renew = func(ctx context.Context, lease time.Duration, refs []outbox.Ref) ([]outbox.Ref, error) {
					return renew(ctx, lease, p.latestOf(refs))
				}
				p.claimed(func(m *outbox.Claimed) { m.Fence = m.Position })
			},
		},
		{
			Name: "lease-forgotten", What: "a message can be claimed again while its lease runs",
			Breaks: []string{"a-leased-message-is-not-claimed-again-before-its-lease-is-over"},
			change: func(p *postOffice) { p.claim(func(c *outbox.Claim) { c.Lease /= 2 }) },
		},
		{
			Name: "lapsed-is-lost", What: "a claim whose lease is over counts as lost, though nobody else has the message",
			Breaks: []string{"a-lapsed-claim-that-nobody-followed-still-holds"},
			change: func(p *postOffice) {
				var ends sync.Map // by outbox.Ref
				var lease atomic.Int64
				p.claim(func(c *outbox.Claim) { lease.Store(int64(c.Lease)) })
				p.claimed(func(m *outbox.Claimed) { ends.Store(m.Ref, time.Now().Add(time.Duration(lease.Load()))) })
				p.refuse(func(ref outbox.Ref) bool {
					end, ok := ends.Load(ref)
					return ok && !time.Now().Before(end.(time.Time))
				})
			},
		},
		{
			Name: "no-lanes", What: "messages of one key are claimed together",
			Breaks: []string{
				"of-a-lane-only-the-first-is-claimed", "a-lane-waits-for-its-first-messages-time", "a-failure-keeps-its-lane-waiting-and-no-other",
				"a-dead-message-blocks-its-lane-or-lets-it-go-on", "redriving-a-blocking-message-keeps-the-order",
				"redriving-a-skipped-message-says-that-order-is-given-up", "concurrent-claims-share-nothing",
			},
			change: func(p *postOffice) {
				p.message(func(m *outbox.Message) { m.Key = "" })
			},
		},
		{
			Name: "not-before-forgotten", What: "a message is claimed before its time",
			Breaks: []string{"a-message-is-not-before-its-time", "a-lane-waits-for-its-first-messages-time"},
			change: func(p *postOffice) { p.message(func(m *outbox.Message) { m.NotBefore = time.Time{} }) },
		},
		{
			Name: "headers-lost", What: "headers are not kept",
			Breaks: []string{"a-message-comes-as-it-was-enqueued"},
			change: func(p *postOffice) { p.message(func(m *outbox.Message) { m.Headers = nil }) },
		},
		{
			Name: "duplicates-accepted", What: "a second message of one id is taken for enqueued",
			Breaks: []string{"an-id-is-taken-once"},
			change: func(p *postOffice) {
				enqueue := p.enqueue
				p.enqueue = func(ctx context.Context, m ...outbox.Message) error {
					if err := enqueue(ctx, m...); !errors.Is(err, outbox.ErrDuplicate) {
						return err
					}
					return nil
				}
			},
		},
		{
			Name: "half-enqueued", What: "what comes before a duplicate is enqueued without it",
			Breaks: []string{"an-id-is-taken-once"},
			change: func(p *postOffice) {
				enqueue := p.enqueue
				p.enqueue = func(ctx context.Context, all ...outbox.Message) error {
					for _, m := range all {
						if err := enqueue(ctx, m); err != nil {
							return err
						}
					}
					return nil
				}
			},
		},
		{
			Name: "bounds-cut", What: "what is too long is cut off instead of refused",
			Breaks: []string{"a-message-is-not-enqueued-that-breaks-its-bounds"},
			change: func(p *postOffice) {
				p.message(func(m *outbox.Message) {
					m.Topic, m.Payload = m.Topic[:min(len(m.Topic), outbox.MaxName)], m.Payload[:min(len(m.Payload), outbox.MaxPayload)]
				})
			},
		},
		{
			Name: "max-bytes-ignored", What: "a claim takes more bytes than it asks for",
			Breaks: []string{"a-claim-takes-no-more-than-it-asks-for"},
			change: func(p *postOffice) { p.claim(func(c *outbox.Claim) { c.MaxBytes = 0 }) },
		},
		{
			Name: "max-ignored", What: "a claim takes more messages than it asks for",
			Breaks: []string{"a-claim-takes-no-more-than-it-asks-for"},
			change: func(p *postOffice) { p.claim(func(c *outbox.Claim) { c.Max *= 2 }) },
		},
		{
			Name: "topic-starves", What: "a claim for all topics takes those of the first as long as there are any",
			Breaks: []string{"every-topic-has-its-share"},
			change: func(p *postOffice) {
				p.prefer(func(a, b outbox.Claimed) int { return cmp.Compare(a.Topic, b.Topic) })
			},
		},
		{
			Name: "new-ones-first", What: "what comes back waits for as long as there is something new",
			Breaks: []string{"what-comes-back-and-what-is-new-do-not-starve-each-other"},
			change: func(p *postOffice) {
				p.prefer(func(a, b outbox.Claimed) int { return cmp.Compare(a.Attempts, b.Attempts) })
			},
		},
		{
			Name: "suspects-in-company", What: "a suspect is claimed by who has one",
			Breaks: []string{"suspects-come-alone"},
			change: func(p *postOffice) { p.claim(func(c *outbox.Claim) { c.Suspect = true }) },
		},
		{
			Name: "shared-claims", What: "who claims at the same time gets the same messages",
			Breaks: []string{"concurrent-claims-share-nothing"},
			change: func(p *postOffice) {
				exchange := p.exchange
				var (
					at  time.Time
					got []outbox.Claimed
				)
				p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
					p.mu.Lock()
					defer p.mu.Unlock()
					if len(s) > 0 || c.Max != 7 {
						return exchange(ctx, s, c)
					}
					if !at.IsZero() && len(got) > 0 {
						again := got
						got = nil
						return again, nil, nil
					}
					var err error
					got, _, err = exchange(ctx, s, c)
					at = time.Now()
					return got, nil, err
				}
			},
		},
		{
			Name: "attempts-not-counted", What: "every attempt counts as the first",
			Breaks: []string{"a-leased-message-is-not-claimed-again-before-its-lease-is-over", "a-failure-keeps-its-lane-waiting-and-no-other"},
			change: func(p *postOffice) { p.claimed(func(m *outbox.Claimed) { m.Attempts = 1 }) },
		},
		{
			Name: "lapses-not-counted", What: "a claim that lapsed leaves no trace",
			Breaks: []string{"a-leased-message-is-not-claimed-again-before-its-lease-is-over", "suspects-come-alone"},
			change: func(p *postOffice) { p.claimed(func(m *outbox.Claimed) { m.Lapses = 0 }) },
		},
		{
			Name: "release-counts", What: "a claim that was released counts as an attempt",
			Breaks: []string{"a-delay-delays-and-a-release-does-not", "a-release-with-a-delay-delays-and-is-no-attempt"},
			change: func(p *postOffice) {
				p.settlement(func(s *outbox.Settlement) {
					if s.Outcome == outbox.OutcomeReleased {
						s.Outcome = outbox.OutcomeRetry
					}
				})
			},
		},
		{
			Name: "release-at-once", What: "what is released for later is due at once",
			Breaks: []string{"a-release-with-a-delay-delays-and-is-no-attempt"},
			change: func(p *postOffice) {
				p.settlement(func(s *outbox.Settlement) {
					if s.Outcome == outbox.OutcomeReleased {
						s.Delay = 0
					}
				})
			},
		},
		{
			Name: "delay-ignored", What: "what failed is due again at once",
			Breaks: []string{"a-delay-delays-and-a-release-does-not", "a-failure-keeps-its-lane-waiting-and-no-other"},
			change: func(p *postOffice) { p.settlement(func(s *outbox.Settlement) { s.Delay = 0 }) },
		},
		{
			Name: "mark-not-kept", What: "a mark is lost with the process",
			Breaks: []string{"a-marked-claim-leaves-the-message-unsure"},
			change: func(p *postOffice) { p.mark = func(ctx context.Context, _ outbox.Ref) error { return ctx.Err() } },
		},
		{
			Name: "unsure-forgotten", What: "that an attempt may have arrived is forgotten when it is settled",
			Breaks: []string{"a-marked-claim-leaves-the-message-unsure"},
			change: func(p *postOffice) { p.settlement(func(s *outbox.Settlement) { s.Unsure = false }) },
		},
		{
			Name: "dead-never-blocks", What: "a dead message lets its lane go on under either policy",
			Breaks: []string{"a-dead-message-blocks-its-lane-or-lets-it-go-on", "redriving-a-blocking-message-keeps-the-order"},
			change: func(p *postOffice) { p.settlement(func(s *outbox.Settlement) { s.Blocks = false }) },
		},
		{
			Name: "dead-always-blocks", What: "a dead message blocks its lane under either policy",
			Breaks: []string{"a-dead-message-blocks-its-lane-or-lets-it-go-on", "redriving-a-skipped-message-says-that-order-is-given-up"},
			change: func(p *postOffice) { p.settlement(func(s *outbox.Settlement) { s.Blocks = true }) },
		},
		{
			Name: "settled-again-is-lost", What: "who asks again for a settlement whose answer was lost is told that the claim is",
			Breaks: []string{"settling-again-changes-nothing"},
			change: func(p *postOffice) {
				var done sync.Map // of outbox.Ref
				p.refuse(func(ref outbox.Ref) bool {
					_, again := done.LoadOrStore(ref, true)
					return again
				})
			},
		},
		{
			Name: "claims-first", What: "an exchange claims before it settles",
			Breaks: []string{"an-exchange-claims-of-the-lane-that-it-lets-go-on"},
			change: func(p *postOffice) {
				exchange := p.exchange
				p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
					got, _, err := exchange(ctx, nil, c)
					if err != nil {
						return nil, nil, err
					}
					_, lost, err := exchange(ctx, s, outbox.Claim{})
					return got, lost, err
				}
			},
		},
		{
			Name: "settled-one-by-one", What: "what comes before a settlement that fails is settled",
			Breaks: []string{"an-exchange-takes-effect-as-a-whole"},
			change: func(p *postOffice) {
				exchange := p.exchange
				p.exchange = func(ctx context.Context, all []outbox.Settlement, c outbox.Claim) (_ []outbox.Claimed, lost []outbox.Ref, _ error) {
					for _, s := range all {
						_, gone, err := exchange(ctx, []outbox.Settlement{s}, outbox.Claim{})
						if err != nil {
							return nil, nil, err
						}
						lost = append(lost, gone...)
					}
					got, _, err := exchange(ctx, nil, c)
					return got, lost, err
				}
			},
		},
		{
			Name: "redriven-twice", What: "two who redrive at the same time are both told that they did",
			Breaks: []string{"of-concurrent-redrives-one-takes-place"},
			change: func(p *postOffice) {
				p.redrive = func(ctx context.Context, f outbox.Filter) (done []outbox.Redriven, err error) {
					page, err := p.Outbox.List(ctx, f)
					if err != nil {
						return nil, err
					}
					time.Sleep(moment)
					if _, err := p.Outbox.Redrive(ctx, f); err != nil {
						return nil, err
					}
					for _, e := range page {
						if e.State == outbox.StateDead || e.State == outbox.StateUnknown {
							done = append(done, outbox.Redriven{ID: e.ID, Position: e.Position, OutOfOrder: e.Key != "" && !e.Blocks})
						}
					}
					return done, nil
				}
			},
		},
		{
			Name: "order-said-to-be-kept", What: "a redrive does not say that its message comes out of order",
			Breaks: []string{"redriving-a-skipped-message-says-that-order-is-given-up"},
			change: func(p *postOffice) {
				redrive := p.redrive
				p.redrive = func(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
					done, err := redrive(ctx, f)
					for i := range done {
						done[i].OutOfOrder = false
					}
					return done, err
				}
			},
		},
		{
			Name: "decided-by-nobody", What: "a redrive is not on record with who decided it",
			Breaks: []string{"a-decision-is-on-record-and-ends-what-it-cancels"},
			change: func(p *postOffice) {
				decide := p.decide
				p.decide = func(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
					if d.Verdict == outbox.VerdictAgain {
						return p.redrive(ctx, f)
					}
					return decide(ctx, f, d)
				}
			},
		},
		{
			Name: "redrives-delivered", What: "a redrive by id sends what has arrived once more, though nobody said so",
			Breaks: []string{"a-delivered-message-is-redriven-by-its-id-only"},
			change: func(p *postOffice) {
				redrive := p.redrive
				p.redrive = func(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
					if f.ID != "" {
						f.State = outbox.StateDelivered
					}
					return redrive(ctx, f)
				}
			},
		},
		{
			Name: "sweeps-pending", What: "a sweep removes what was never delivered",
			Breaks: []string{"a-sweep-keeps-what-is-wanted"}, change: sweeps(outbox.StatePending),
		},
		{
			Name: "sweeps-unknown", What: "a sweep removes what nobody has decided on",
			Breaks: []string{"a-sweep-keeps-what-is-wanted"}, change: sweeps(outbox.StateUnknown),
		},
		{
			Name: "sweeps-blocking", What: "a sweep removes what blocks its lane, which goes on",
			Breaks: []string{"a-sweep-keeps-what-is-wanted"},
			change: func(p *postOffice) {
				sweep := p.sweep
				p.sweep = func(ctx context.Context, r outbox.Retention, limit int) (int, error) {
					n, err := sweep(ctx, r, limit)
					page, _ := p.Outbox.List(ctx, outbox.Filter{State: outbox.StateDead})
					for _, e := range page {
						if e.Blocks {
							gone, _ := p.Outbox.Purge(ctx, outbox.Filter{ID: e.ID})
							n += len(gone)
						}
					}
					return n, err
				}
			},
		},
		{
			Name: "sweeps-all-of-an-age", What: "a sweep removes more than its limit",
			Breaks: []string{"a-sweep-keeps-what-is-wanted"},
			change: func(p *postOffice) {
				sweep := p.sweep
				p.sweep = func(ctx context.Context, r outbox.Retention, _ int) (int, error) { return sweep(ctx, r, 1000) }
			},
		},
		{
			Name: "status-without-blocked", What: "status does not tell of lanes that are held up",
			Breaks: []string{"status-tells-what-waits"},
			change: func(p *postOffice) {
				status := p.status
				p.status = func(ctx context.Context) ([]outbox.TopicStatus, error) {
					all, err := status(ctx)
					for i := range all {
						all[i].Blocked = 0
					}
					return all, err
				}
			},
		},
		{
			Name: "pages-begin-anew", What: "every page of a list is the first",
			Breaks: []string{"lists-are-paged-and-filtered"},
			change: func(p *postOffice) {
				list, pages := p.list, 0
				p.list = func(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
					if pages++; pages < 100 { // or the rule would list for ever
						f.After = 0
					}
					return list(ctx, f)
				}
			},
		},
		{
			Name: "cause-prefix-ignored", What: "a cause is taken for a prefix of what is looked for",
			Breaks: []string{"lists-are-paged-and-filtered"},
			change: func(p *postOffice) {
				list := p.list
				p.list = func(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
					if f.Cause != "" && !strings.HasSuffix(f.Cause, "*") {
						f.Cause += "*"
					}
					return list(ctx, f)
				}
			},
		},
		{
			Name: "purges-all", What: "a purge that names nothing removes everything",
			Breaks: []string{"a-purge-removes-and-unblocks"},
			change: func(p *postOffice) {
				purge := p.purge
				p.purge = func(ctx context.Context, f outbox.Filter) (gone []outbox.Entry, err error) {
					if f.ID != "" || f.State != "" {
						return purge(ctx, f)
					}
					for _, f.State = range []outbox.State{outbox.StatePending, outbox.StateDelivered, outbox.StateDead, outbox.StateUnknown} {
						some, _ := purge(ctx, f)
						gone = append(gone, some...)
					}
					return gone, nil
				}
			},
		},
		{
			Name: "purges-under-way", What: "a purge removes what is being delivered",
			Breaks: []string{"a-purge-removes-and-unblocks"},
			change: func(p *postOffice) {
				p.remember()
				purge := p.purge
				p.purge = func(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
					for _, m := range maps.Clone(p.last) {
						_, _, _ = p.Outbox.Exchange(ctx, []outbox.Settlement{{Ref: m.Ref, Outcome: outbox.OutcomeReleased}}, outbox.Claim{})
					}
					return purge(ctx, f)
				}
			},
		},
		{
			Name: "context-ignored", What: "who has left is served all the same",
			Breaks: []string{"who-has-left-is-not-served"},
			change: func(p *postOffice) {
				exchange := p.exchange
				p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
					return exchange(context.WithoutCancel(ctx), s, c)
				}
			},
		},
	}
}
