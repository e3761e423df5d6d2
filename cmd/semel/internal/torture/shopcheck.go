package torture

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// shopFacts are the facts about orders, in the database and with the remote.
type shopFacts struct {
	orders    map[string]*orderFacts
	remaining map[int]int // stock by item
	moved     map[int]int // sum of the reservations
	stuck     []string
}

// orderFacts are the facts about one order.
type orderFacts struct {
	reservations []reservationFact
	written      []writtenFact
	notices      []noticeFact
	events       []string // ids
	jobs         []jobFact
	done         []doneFact
	charges      []string // keys
	repeats      int      // calls of the remote under a key that had made a charge
	revoked      *time.Time
}

type reservationFact struct {
	ID    string
	Delta int
}

type writtenFact struct{ Receipt, Lane, Notice, Event, By string }

type noticeFact struct {
	Seq           int64
	Message, Lane string
	position      uint64 // of the message
}

type jobFact struct {
	ID        string
	NotBefore *time.Time
}

type doneFact struct{ Job, Receipt string }

// shopFacts reads the facts. The outbox is read first, so that the effect of a message
// that it says was delivered is in what is read later.
func (r *run) shopFacts(ctx context.Context) (f *shopFacts, messages map[string]outbox.Entry, err error) {
	messages = map[string]outbox.Entry{}
	for after := uint64(0); ; {
		page, err := r.shop.store.Outbox().List(ctx, outbox.Filter{After: after, Limit: 1000})
		if err != nil {
			return nil, nil, err
		}
		for _, m := range page {
			after = m.Position
			messages[m.ID] = m
		}
		if len(page) < 1000 {
			break
		}
	}
	f = &shopFacts{orders: map[string]*orderFacts{}, remaining: map[int]int{}, moved: map[int]int{}}
	of := func(order string) *orderFacts {
		if f.orders[order] == nil {
			f.orders[order] = &orderFacts{}
		}
		return f.orders[order]
	}
	err = pgx.BeginTxFunc(ctx, r.shop.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		each := func(query string, fields []any, take func()) {
			if err != nil {
				return
			}
			rows, e := tx.Query(ctx, query)
			if e == nil {
				_, e = pgx.ForEachRow(rows, fields, func() error { take(); return nil })
			}
			err = e
		}
		var (
			order, a, b, c, d, e string
			n, m                 int
			seq                  int64
			at                   *time.Time
		)
		each("SELECT order_no, id, item, delta FROM shop_reservations", []any{&order, &a, &n, &m}, func() {
			of(order).reservations = append(of(order).reservations, reservationFact{a, m})
			f.moved[n] += m
		})
		each("SELECT item, remaining FROM shop_stock", []any{&n, &m}, func() { f.remaining[n] = m })
		each("SELECT order_no, receipt, lane, notice, event, by_entry FROM shop_orders", []any{&order, &a, &b, &c, &d, &e}, func() {
			of(order).written = append(of(order).written, writtenFact{a, b, c, d, e})
		})
		each("SELECT order_no, seq, message, lane FROM shop_notices", []any{&order, &seq, &a, &b}, func() {
			of(order).notices = append(of(order).notices, noticeFact{seq, a, b, messages[a].Position})
		})
		each("SELECT order_no, event FROM shop_events", []any{&order, &a}, func() { of(order).events = append(of(order).events, a) })
		each("SELECT order_no, job, not_before FROM shop_jobs", []any{&order, &a, &at}, func() {
			of(order).jobs = append(of(order).jobs, jobFact{a, at})
			at = nil
		})
		each("SELECT order_no, job, receipt FROM shop_done", []any{&order, &a, &b}, func() { of(order).done = append(of(order).done, doneFact{a, b}) })
		each("SELECT actor, sure_at FROM shop_actors WHERE sure_at IS NOT NULL", []any{&a, &at}, func() {
			of(strings.TrimPrefix(a, "actor of ")).revoked = at
			at = nil
		})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	charges, err := readCharges(r.chargesFile())
	for _, c := range charges {
		if c.Repeat {
			of(c.Order).repeats++
		} else {
			of(c.Order).charges = append(of(c.Order).charges, c.Key)
		}
	}
	return f, messages, err
}

// checkShop returns every violation of the shop's promises.
func (e *evidence) checkShop() (all []Violation) {
	troubles := e.troubles()
	sent := map[string]bool{}
	for _, k := range e.byKey() {
		sent[k.key] = true
		found := func(check string, at time.Duration, format string, args ...any) {
			all = append(all, Violation{
				Check: check, Key: k.key, Detail: fmt.Sprintf(format, args...), Faults: k.struckBy(at, troubles), Timeline: e.timeline(k),
			})
		}
		o := e.shop.orders[k.key]
		if o == nil {
			o = &orderFacts{}
		}
		e.checkOrder(k, o, found)
	}
	general := func(check, format string, args ...any) {
		all = append(all, Violation{Check: check, Key: "-", Detail: fmt.Sprintf(format, args...)})
	}
	for item, left := range e.shop.remaining {
		if want := shopStock + e.shop.moved[item]; left != want {
			general(checkMissing, "the stock of item %d is %d; by its reservations it should be %d", item, left, want)
		}
	}
	e.checkLanes(general)
	if e.over {
		for order := range e.shop.orders {
			if !sent[order] {
				general(checkUnexpected, "there are effects of order %s, which no client sent", order)
			}
		}
		for _, what := range e.shop.stuck {
			general(checkStuck, "%s, though the faults have ended, and nothing works on it", what)
		}
	}
	return all
}

// checkLanes checks that the first deliveries of a lane are in the order of its messages.
func (e *evidence) checkLanes(general func(check, format string, args ...any)) {
	lanes := map[string][]noticeFact{}
	for _, o := range e.shop.orders {
		for _, n := range o.notices {
			if n.position > 0 && !slices.ContainsFunc(lanes[n.Lane], func(o noticeFact) bool { return o.Message == n.Message }) {
				lanes[n.Lane] = append(lanes[n.Lane], n)
			}
		}
	}
	for lane, notices := range lanes {
		slices.SortFunc(notices, func(a, b noticeFact) int { return cmp.Compare(a.position, b.position) })
		for i := 1; i < len(notices); i++ {
			if notices[i].Seq < notices[i-1].Seq {
				general(checkOrder, "in %s message %s was enqueued before %s, and took effect after it", lane, notices[i-1].Message, notices[i].Message)
				break
			}
		}
	}
}

func digestOf(receipt string) string {
	sum := sha256.Sum256([]byte(receipt))
	return hex.EncodeToString(sum[:6])
}

// checkOrder compares what clients were told about an order with the facts about it.
func (e *evidence) checkOrder(k *keyHistory, o *orderFacts, found finder) {
	kind := orderKindOf(k.key)
	taken, given := 0, 0
	for _, r := range o.reservations {
		if r.Delta < 0 {
			taken++
		} else {
			given++
		}
	}
	done := map[string]int{}
	for _, d := range o.done {
		done[d.Job]++
	}
	most := 0
	for _, n := range done {
		most = max(most, n)
	}
	for _, n := range []struct {
		what  string
		count int
	}{
		{"reservations", taken},
		{"returns of the reserved", given},
		{"charges", len(o.charges)},
		{"entries in the book of orders", len(o.written)},
		{"notices", len(o.notices)},
		{"events", len(o.events)},
		{"jobs", len(o.jobs)},
		{"effects of one job", most},
	} {
		if n.count > 1 {
			found(checkSecondEffect, forever, "it has %d %s", n.count, n.what)
		}
	}

	// Messages are enqueued in the transaction that writes the order to the book.
	if len(o.written) == 0 && len(o.notices)+len(o.events) > 0 {
		found(checkRolledBack, forever, "it has %d notices and %d events, but is not in the book of orders: they report what was rolled back", len(o.notices), len(o.events))
	}
	effects := taken + given + len(o.charges) + len(o.written) + len(o.notices) + len(o.events) + len(o.done)
	switch {
	case kind == orderForged && effects > 0:
		found(checkAfterRefusal, forever, "none of its webhooks was signed by the partner, and it has %d effects", effects)
	case kind == orderRevoked && o.revoked != nil && len(o.jobs) > 0 && o.jobs[0].NotBefore != nil && o.revoked.Before(*o.jobs[0].NotBefore):
		if effects > 0 {
			found(checkAfterRefusal, forever, "the authority of its job was revoked before the job was due, and it has %d effects", effects)
		}
		if m, ok := e.messages[o.jobs[0].ID]; e.over && (!ok || m.State != outbox.StateDead || !strings.HasPrefix(m.Cause, jobs.ErrRevoked.Error())) {
			found(checkMissing, forever, "the authority of its job was revoked, but the job is %q, because of %q", m.State, m.Cause)
		}
		return
	case kind == orderDeclined && len(o.charges) > 0:
		found(checkAfterRefusal, forever, "it was declined, but has %d charges", len(o.charges))
	}
	for _, w := range o.written {
		switch {
		case taken == 0, kind == orderDeclined && given == 0:
			found(checkMissing, forever, "it is in the book of orders, but %d were reserved and %d given back", taken, given)
		case kind == orderDeclined:
		case len(o.charges) == 0:
			found(checkMissing, forever, "it is in the book of orders, but was not charged")
		default:
			told := func(what, id string, is bool) {
				m, ok := e.messages[id]
				switch {
				case ok && m.State == outbox.StatePending && !e.over:
				case ok && m.State == outbox.StateDelivered && is:
				case !ok && !e.over: // written since the messages were read
				case is && !ok:
					found(checkMissing, forever, "its %s message is not in the outbox", what)
				default:
					found(checkMissing, forever, "its %s message is %q in the outbox, because of %q, and has had no effect", what, m.State, m.Cause)
				}
			}
			told("notice", w.Notice, slices.ContainsFunc(o.notices, func(n noticeFact) bool { return n.Message == w.Notice }))
			told("event", w.Event, slices.Contains(o.events, strings.TrimSuffix(w.Event, ":"+w.Lane)))
		}
	}
	if e.over && len(o.written) == 0 && effects > 0 {
		found(checkStuck, forever, "it has %d effects, and nothing continues it", effects)
	}
	for _, j := range o.jobs {
		m, ok := e.messages[j.ID]
		if kind == orderRevoked && m.State == outbox.StateDead && strings.HasPrefix(m.Cause, jobs.ErrRevoked.Error()) {
			continue // revoked while it was due: it may have begun
		}
		if (e.over || ok && m.State == outbox.StateDelivered) && done[j.ID] == 0 {
			found(checkMissing, forever, "its job is %q, because of %q, and has had no effect", m.State, m.Cause)
		}
	}
	e.checkTold(k, o, found)
}

// checkTold checks that all clients were told the same, and that it is true.
func (e *evidence) checkTold(k *keyHistory, o *orderFacts, found finder) {
	once := map[string]bool{}
	find := func(check string, a *attempt, format string, args ...any) {
		if !once[check] {
			once[check] = true
			found(check, a.over, format, args...)
		}
	}
	last := map[entry]*attempt{}
	for _, a := range k.attempts {
		last[a.entry] = a
		if a.response == nil {
			continue
		}
		switch a.response.class {
		case unexpected:
			find(checkUnexpected, a, "attempt #%d by %s: %v %s", a.attempt, a.entry, a.response, a.response.problem)
		case torn:
			find(checkTorn, a, "attempt #%d by %s: %v came to its end, but is not the whole response", a.attempt, a.entry, a.response)
		case acknowledged:
			if a.entry == entryJob {
				if !slices.ContainsFunc(o.jobs, func(j jobFact) bool { return j.ID == a.response.effect }) {
					find(checkMissing, a, "attempt #%d was told of job %s, which was not enqueued", a.attempt, a.response.effect)
				}
				continue
			}
			if len(o.written) == 0 {
				find(checkMissing, a, "attempt #%d by %s was told that the order was placed, but it is not in the book of orders", a.attempt, a.entry)
			} else if w := o.written[0]; digestOf(w.Receipt) != a.response.digest {
				find(checkDiffer, a, "attempt #%d by %s was told %s; the book says %s, by %s", a.attempt, a.entry, a.response.effect, w.Receipt, w.By)
			}
		}
	}
	for _, d := range o.done {
		if len(o.written) > 0 && d.Receipt != o.written[0].Receipt {
			found(checkDiffer, forever, "a job was told %s; the book says %s", d.Receipt, o.written[0].Receipt)
		}
	}
	for _, end := range k.ends {
		if end.entry != "" && end.text == endGaveUp && e.over && strings.HasPrefix(end.who, "again") {
			found(checkStuck, forever, "no client could learn its outcome by %s: the last attempt, #%d, got %v", end.entry, last[end.entry].attempt, last[end.entry].response)
		}
	}
}

// ShopFigures count what shops did.
type ShopFigures struct {
	// By counts acknowledged attempts, and Placed completed orders, by entry. Placed
	// also has those that the completer completed.
	By     map[string]int `json:"by"`
	Placed map[string]int `json:"placed"`
	// Declined counts orders that the remote declined, Revoked jobs whose authority
	// was revoked, and Refused webhooks that were not accepted.
	Declined int `json:"declined"`
	Revoked  int `json:"revoked"`
	Refused  int `json:"refused"`

	Reservations int `json:"reservations"`
	Charges      int `json:"charges"`
	Notices      int `json:"notices"`
	Events       int `json:"events"`
	Jobs         int `json:"jobs"`
	JobEffects   int `json:"job_effects"`
	// Repeats counts calls of the remote under a key that had made a charge, Dropped
	// messages that an inbox knew, and Rerun jobs that were run again.
	Repeats int `json:"repeats"`
	Dropped int `json:"dropped"`
	Rerun   int `json:"rerun"`
	// LostLeases counts executions, and LostClaims messages and jobs, that others took
	// over from a shop that was paused or cut off.
	LostLeases int `json:"lost_leases"`
	LostClaims int `json:"lost_claims"`
}

func (e *evidence) shopFigures() *ShopFigures {
	f := &ShopFigures{By: map[string]int{}, Placed: map[string]int{}}
	for _, ev := range e.events {
		switch {
		case ev.kind == kindResponse && ev.response.class == acknowledged:
			f.By[string(ev.entry)]++
		case ev.kind == kindResponse && ev.response.class == noEffect:
			f.Refused++
		case ev.kind == kindAgain:
			f.Rerun++
		case ev.kind == kindLog && ev.text == droppedRepetition:
			f.Dropped++
		case ev.kind == kindLog && ev.text == lostLease:
			f.LostLeases++
		case ev.kind == kindLog && ev.text == lostMessage:
			f.LostClaims++
		}
	}
	for order, o := range e.shop.orders {
		for _, w := range o.written {
			f.Placed[w.By]++
			if orderKindOf(order) == orderDeclined {
				f.Declined++
			}
		}
		for _, r := range o.reservations {
			if r.Delta < 0 {
				f.Reservations++
			}
		}
		for _, j := range o.jobs {
			if e.messages[j.ID].State == outbox.StateDead {
				f.Revoked++
			}
		}
		f.Charges += len(o.charges)
		f.Notices += len(o.notices)
		f.Events += len(o.events)
		f.Jobs += len(o.jobs)
		f.JobEffects += len(o.done)
		f.Repeats += o.repeats
	}
	return f
}

// enoughOfShop returns what a run of shops saw too little of.
func enoughOfShop(seconds int, f Figures) (lacks []string) {
	s := f.Shop
	need := func(what string, got, want int) {
		if want = max(want, 1); got < want {
			lacks = append(lacks, fmt.Sprintf("%s: %d, at least %d are needed", what, got, want))
		}
	}
	for _, e := range entries {
		need("acknowledgements by "+string(e), s.By[string(e)], seconds/2)
	}
	for _, by := range []string{"http", "webhook", "job", "completer"} {
		need("orders completed by "+by, s.Placed[by], seconds/30)
	}
	need("charges", s.Charges, seconds)
	need("calls of the remote under a key that had made a charge", s.Repeats, seconds/20)
	need("declined orders", s.Declined, seconds/10)
	need("jobs whose authority was revoked", s.Revoked, seconds/20)
	need("refused webhooks", s.Refused, seconds/10)
	need("notices", s.Notices, seconds)
	need("events", s.Events, seconds)
	need("repetitions that an inbox dropped", s.Dropped, seconds/30)
	need("jobs that were done", s.JobEffects, seconds/2)
	need("jobs that were run again", s.Rerun, seconds/30)
	need("retries", f.Retries, seconds)
	if canPause {
		need("leases that were lost", s.LostLeases, seconds/30)
		need("claims on messages that were lost", s.LostClaims, seconds/30)
	}
	return lacks
}

func (f *ShopFigures) write(say func(format string, args ...any)) {
	list := func(counts map[string]int) string {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
		}
		return strings.Join(parts, ", ")
	}
	say("acked by    %s", list(f.By))
	say("placed by   %s", list(f.Placed))
	say("refused     %d orders declined, %d jobs revoked, %d webhooks refused", f.Declined, f.Revoked, f.Refused)
	say("shop        %d reservations, %d charges (%d repeated calls), %d notices (%d repetitions dropped), %d events", f.Reservations, f.Charges, f.Repeats, f.Notices, f.Dropped, f.Events)
	say("jobs        %d: %d effects, %d run again", f.Jobs, f.JobEffects, f.Rerun)
	say("taken over  %d executions, %d messages and jobs", f.LostLeases, f.LostClaims)
}
