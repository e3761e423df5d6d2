package torture

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/webhook"
)

// orderKind is the fate of an order. It is part of its number.
type orderKind string

const (
	orderPlaced   orderKind = "placed"
	orderDeclined orderKind = "declined" // by the remote, for good
	orderRevoked  orderKind = "revoked"  // placed only by a job, whose actor is revoked
	orderForged   orderKind = "forged"   // placed only by webhooks, which are not the partner's
)

func orderKey(prefix string, number int) string {
	key := fmt.Sprintf("%s-%d", prefix, number)
	switch {
	case number%9 == 4:
		key += "-" + string(orderDeclined)
	case number%9 == 7:
		key += "-" + string(orderRevoked)
	case number%24 == 10:
		key += "-" + string(orderForged)
	}
	return key
}

func orderKindOf(order string) orderKind {
	k := orderKind(order[strings.LastIndexByte(order, '-')+1:])
	if k == orderDeclined || k == orderRevoked || k == orderForged {
		return k
	}
	return orderPlaced
}

// wantedOf returns the content of an order: the same each time.
func wantedOf(order string) wanted {
	h := fnv.New32a()
	_, _ = h.Write([]byte(order))
	n := int(h.Sum32() % (shopItems * shopLanes))
	return wanted{Order: order, Item: n % shopItems, Lane: laneName(n % shopLanes), Actor: "actor of " + order, Later: orderKindOf(order) == orderRevoked}
}

// entry is a way to place an order.
type entry string

const (
	entryRequest entry = "http"
	entryAgain   entry = "http, another key"
	entryWebhook entry = "webhook"
	entryJob     entry = "job"
)

var entries = []entry{entryRequest, entryAgain, entryWebhook, entryJob}

// shopRun is the part of a run that only shops need.
type shopRun struct {
	pool   *pgxpool.Pool // to the database itself, not through a wire
	store  *postgres.Store
	clocks map[*gatewayChild]time.Duration
}

// tolerance is that of webhooks. Clocks are sometimes further apart.
const tolerance = webhook.DefaultTolerance

func (r *run) chargesFile() string { return filepath.Join(r.config.Dir, "charges.jsonl") }

func (r *run) setUpShop(ctx context.Context, manner []string) (err error) {
	c := r.config
	r.shop = &shopRun{clocks: map[*gatewayChild]time.Duration{}}
	if r.shop.pool, err = pgxpool.New(ctx, c.Postgres); err != nil {
		return errors.New("the database's URL cannot be parsed")
	}
	if r.shop.store, err = makeShop(ctx, r.shop.pool); err != nil {
		return err
	}
	if f, err := os.OpenFile(r.chargesFile(), os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	} else if err := f.Close(); err != nil {
		return err
	}
	var backs []*proxy
	for i := range c.Gateways {
		name := fmt.Sprint(i + 1)
		g, store, err := r.addChild("shop "+name, nil)
		if err != nil {
			return err
		}
		if g.back, err = newProxy("back "+name, back, r.history, r.newRand(), c.Nemesis.CutBack); err != nil {
			return err
		}
		backs = append(backs, g.back)
		// The clocks are up to four minutes apart.
		clock := time.Duration(i%3-1) * 2 * time.Minute
		r.shop.clocks[g] = clock
		binary, args := c.instead()
		var env []string
		if c.Skewed != "" {
			binary, env, clock = c.Skewed, []string{c.SkewVariable + "=" + clock.String()}, 0
		}
		g.process = &process{
			name: "shop " + name, binary: binary, env: env, says: Listening + " on ", history: r.history, follow: g.front.lead,
			args: slices.Concat(args, []string{
				"torture", "shop", "--database", store, "--remote", "http://" + g.back.addr(), "--lease", c.Lease.String(),
				"--clock", clock.String(), "--slow-every", fmt.Sprint(c.SlowEvery),
			}, manner),
		}
	}
	for i, g := range r.gateways { // each delivers to the next
		g.process.args = append(g.process.args, "--peer", "http://"+r.gateways[(i+1)%len(r.gateways)].front.addr())
	}
	r.ledger = &process{
		name: "remote", binary: c.Binary, says: Listening + " on ", history: r.history,
		follow: func(addr string) {
			for _, b := range backs {
				b.lead(addr)
			}
		},
		args: append([]string{"torture", "remote", "--file", r.chargesFile(), "--slow-every", fmt.Sprint(c.SlowEvery)}, manner...),
	}
	return r.ledger.start(ctx)
}

func (s *shopRun) close() {
	if s.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.store.Close(ctx)
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

// senderClock is how far the clock of a webhook's sender is off.
func (c *client) senderClock() time.Duration {
	return time.Duration(c.rng.IntN(9)-4) * time.Minute
}

// wantedRequest returns what is sent: the same each time, except for the signature of a
// webhook.
func wantedRequest(order string, e entry, clock time.Duration) ([]byte, error) {
	in := wantedOf(order)
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\r\n", args...) }
	switch e {
	case entryWebhook:
		secret := partnerSecret
		if orderKindOf(order) == orderForged {
			secret = forgerSecret
		}
		scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}, Now: func() time.Time { return time.Now().Add(clock) }})
		if err != nil {
			return nil, err
		}
		header, err := scheme.Sign("event-"+order, body)
		if err != nil {
			return nil, err
		}
		line("POST /hooks HTTP/1.1")
		for name, values := range header {
			line("%s: %s", name, values[0])
		}
	case entryJob:
		line("POST /later HTTP/1.1")
		line("Idempotency-Key: %q", "job-"+order)
	case entryAgain:
		line("POST /orders HTTP/1.1")
		line("Idempotency-Key: %q", "again-"+order)
	default:
		line("POST /orders HTTP/1.1")
		line("Idempotency-Key: %q", "first-"+order)
	}
	line("Host: shop")
	line("%s: %s", headerOrder, order)
	line("Content-Type: application/json")
	line("Content-Length: %d", len(body))
	line("")
	_, _ = b.Write(body)
	return b.Bytes(), nil
}

// readOrder classifies a whole response to an attempt to place an order. apart is the
// difference between the clocks of the sender and the shop.
func readOrder(res *http.Response, body []byte, order string, e entry, apart time.Duration) *response {
	got := &response{class: unexpected, status: res.StatusCode, replayed: res.Header.Get(semelhttp.HeaderReplayed) == "true"}
	if p, err := semelhttp.ParseProblem(bytes.NewReader(body), res.Header.Get("Content-Type")); err == nil {
		_, got.problem, _ = strings.Cut(p.Type, "#")
	}
	sum := sha256.Sum256(bytes.TrimSpace(body))
	got.digest = hex.EncodeToString(sum[:6])
	signed := e == entryWebhook && orderKindOf(order) != orderForged
	switch {
	case res.StatusCode == http.StatusCreated && (e == entryRequest || e == entryAgain),
		res.StatusCode == http.StatusOK && signed && apart <= tolerance+2*time.Second:
		var placed receipt
		if json.Unmarshal(body, &placed) != nil {
			got.class = torn
		} else if placed.Order == order {
			got.class, got.effect = acknowledged, string(bytes.TrimSpace(body))
		}
	case res.StatusCode == http.StatusAccepted && e == entryJob:
		var queued struct {
			Job string `json:"job"`
		}
		if json.Unmarshal(body, &queued) != nil {
			got.class = torn
		} else if queued.Job != "" {
			got.class, got.effect = acknowledged, queued.Job
		}
	case res.StatusCode == http.StatusForbidden && e == entryWebhook && (!signed || apart >= tolerance-2*time.Second):
		got.class = noEffect
	case res.StatusCode == http.StatusConflict && got.problem == "in-progress":
		got.class = inProgress
	case res.StatusCode == http.StatusServiceUnavailable,
		res.StatusCode == http.StatusInternalServerError && got.problem == "outcome-unknown",
		res.StatusCode == http.StatusBadRequest && got.problem == "body-unreadable",
		res.StatusCode == http.StatusRequestTimeout:
		got.class = unavailable
	}
	return got
}

// place sends an order by an entry until it is acknowledged.
func (c *client) place(ctx context.Context, order string, e entry, attempts int) string {
	end := endGaveUp
	for n := 0; n < attempts && ctx.Err() == nil; n++ {
		lease := c.run.config.Lease
		g := c.run.gateways[c.rng.IntN(len(c.run.gateways))]
		clock := c.senderClock()
		raw, err := wantedRequest(order, e, clock)
		if err != nil {
			break
		}
		apart := (clock - c.run.shop.clocks[g]).Abs()
		got := c.sendTo(ctx, g, order, e, raw, c.patience(lease/2, 4*lease), func(res *http.Response, body []byte) *response {
			return readOrder(res, body, order, e, apart)
		})
		if got != nil {
			switch got.class {
			case acknowledged:
				end = endAcknowledged
			case unexpected, torn:
				end = endOdd
			case noEffect:
				if orderKindOf(order) == orderForged {
					end = endRefused
				}
			}
		}
		if end != endGaveUp {
			break
		}
		pause(ctx, randomDuration(c.rng, 5*time.Millisecond, 150*time.Millisecond))
	}
	if end == endGaveUp && ctx.Err() != nil {
		end = endStopped
	}
	if end == endAcknowledged && orderKindOf(order) == orderRevoked {
		c.run.revoke(ctx, wantedOf(order).Actor)
	}
	c.run.history.add(event{kind: kindEnd, who: c.name, key: order, entry: e, text: end})
	return end
}

// revoke takes away an actor's permission, and records a time when it was surely gone.
func (r *run) revoke(ctx context.Context, actor string) {
	for ctx.Err() == nil {
		_, err := r.shop.pool.Exec(ctx, "INSERT INTO shop_actors VALUES ($1) ON CONFLICT DO NOTHING", actor)
		if err == nil { // committed, so it is in force
			if _, err = r.shop.pool.Exec(ctx, "UPDATE shop_actors SET sure_at = clock_timestamp() WHERE actor = $1 AND sure_at IS NULL", actor); err == nil {
				return
			}
		}
		pause(ctx, 50*time.Millisecond) // the database is down
	}
}

// entriesOf returns the ways to place an order.
func entriesOf(order string) []entry {
	switch orderKindOf(order) {
	case orderRevoked:
		return []entry{entryJob}
	case orderForged:
		return []entry{entryWebhook}
	}
	return entries
}

// shopWork places orders until ctx ends, each by one or several entries, at the same
// time or one after the other, and sends some that were placed before again.
func (c *client) shopWork(ctx, patience context.Context) {
	r := c.run
	for ctx.Err() == nil {
		if order := r.keys.acknowledged(c.rng); order != "" && c.rng.IntN(5) == 0 {
			c.place(patience, order, shuffled(c.rng, entriesOf(order))[0], 12)
		} else if order = r.keys.make(); order != "" {
			some := shuffled(c.rng, entriesOf(order))
			some = some[:min(1+c.rng.IntN(3), len(some))]
			if c.rng.IntN(4) == 0 {
				some = append(some, some[0]) // the same twice
			}
			attempts := 12
			if c.rng.IntN(8) == 0 {
				attempts = 1 // a client that does not retry
			}
			ends := make([]string, len(some))
			var all sync.WaitGroup
			for i, e := range some {
				send := func() {
					twin := r.newClient(fmt.Sprintf("%s.%d", c.name, i+1))
					defer twin.close()
					ends[i] = twin.place(patience, order, e, attempts)
				}
				if i == 0 || c.rng.IntN(3) > 0 {
					all.Go(send)
				} else {
					all.Wait()
					send()
				}
			}
			all.Wait()
			if slices.Contains(ends, endAcknowledged) {
				r.keys.settled(order, endAcknowledged)
			}
		}
		pause(ctx, randomDuration(c.rng, 0, r.config.Think))
	}
}

// operate runs finished jobs again, like an operator who is not sure.
func (r *run) operate(ctx context.Context) {
	rng := r.newRand()
	for ctx.Err() == nil {
		pause(ctx, randomDuration(rng, r.config.Lease/2, 3*r.config.Lease/2))
		order := r.keys.acknowledged(rng)
		if order == "" || ctx.Err() != nil {
			continue
		}
		var job string
		if r.shop.pool.QueryRow(ctx, "SELECT job FROM shop_done WHERE order_no = $1", order).Scan(&job) != nil {
			continue
		}
		again, err := r.shop.store.Outbox().Decide(ctx, outbox.Filter{ID: job, State: outbox.StateDelivered}, outbox.Decision{Verdict: outbox.VerdictAgain, By: "operator", Because: "to be sure"})
		if err == nil && len(again) == 1 {
			r.history.add(event{kind: kindAgain, who: "operator", key: order, text: "runs job " + job + " again"})
		}
	}
}

// drained waits until nothing is left to do, for as long as there is progress, and
// returns what is stuck.
func (r *run) drained(ctx context.Context) (stuck []string, err error) {
	patience := 12*r.config.Lease + 5*time.Second
	best, end, last := -1, time.Now().Add(patience), time.Now().Add(6*time.Minute)
	for {
		left, due, err := r.waiting(ctx)
		if err != nil || len(left) == 0 || ctx.Err() != nil {
			return nil, err
		}
		if best < 0 || len(left) < best {
			best, end = len(left), time.Now().Add(patience)
		}
		// Webhooks to a slow endpoint are delayed, for minutes at most.
		if due = due.Add(patience); end.Before(due) {
			end = due
		}
		if now := time.Now(); now.After(end) || now.After(last) {
			return left, nil
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// waiting returns what is still to be done, or is being done, and when the last of it is
// due.
func (r *run) waiting(ctx context.Context) (left []string, due time.Time, err error) {
	s := r.shop.store
	for after := uint64(0); ; {
		page, err := s.Outbox().List(ctx, outbox.Filter{State: outbox.StatePending, After: after, Limit: 1000})
		if err != nil {
			return nil, due, err
		}
		for _, m := range page {
			after = m.Position
			if m.DueAt.After(due) {
				due = m.DueAt
			}
			left = append(left, fmt.Sprintf("message %s of %s waits: %s", m.ID, m.Topic, m.Cause))
		}
		if len(page) < 1000 {
			break
		}
	}
	for _, phase := range []steps.Phase{steps.PhaseOpen, steps.PhaseHeld} {
		page, err := s.Steps().List(ctx, steps.Filter{Phases: []steps.Phase{phase}, Limit: 1000})
		if err != nil {
			return nil, due, err
		}
		for _, o := range page {
			left = append(left, fmt.Sprintf("operation %s is %s: %s", o.Identity.Key, phase, o.Cause))
		}
	}
	page, err := s.List(ctx, semel.Filter{State: semel.StateInProgress, Limit: 1000})
	for _, rec := range page {
		if !rec.Lapsed() {
			left = append(left, "the record of "+rec.Identity.Key+" is in progress")
		}
	}
	return left, due, err
}

// settleShop waits until what was begun is completed, even if no client sends it again.
// Then it sends every order by every entry, and returns what is stuck.
func (r *run) settleShop(ctx context.Context) (stuck []string, err error) {
	if stuck, err = r.drained(ctx); err != nil || len(stuck) > 0 {
		return stuck, err
	}
	last := r.keys.unsettled()
	r.phase("nothing is left to do; sending all %d orders by all entries", len(last))
	r.sendAgain(ctx, last, func(ctx context.Context, c *client, order string) (end string) {
		for _, e := range entriesOf(order) {
			if end = c.place(ctx, order, e, 60); end == endGaveUp {
				break
			}
		}
		return end
	})
	return r.drained(ctx)
}
