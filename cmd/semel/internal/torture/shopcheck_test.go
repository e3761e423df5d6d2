package torture

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
)

// placedWell adds an order without a violation, placed by a request and a job.
func placedWell(s *story, order string) *orderFacts {
	book := fmt.Sprintf(`{"order":%q,"reservation":"r"}`, order)
	o := &orderFacts{
		reservations: []reservationFact{{"r", -1}},
		written:      []writtenFact{{Receipt: book, Lane: "lane-1", Notice: "n-" + order, Event: "e-" + order + ":lane-1", By: "http"}},
		notices:      []noticeFact{{Seq: int64(len(s.shop.orders)) + 1, Message: "n-" + order, Lane: "lane-1", position: uint64(len(s.shop.orders)) + 1}},
		events:       []string{"e-" + order},
		jobs:         []jobFact{{ID: "j-" + order}},
		done:         []doneFact{{"j-" + order, book}},
		charges:      []string{"key"},
	}
	for _, id := range []string{"n-" + order, "e-" + order + ":lane-1", "j-" + order} {
		s.messages[id] = outbox.Entry{State: outbox.StateDelivered}
	}
	s.shop.orders[order] = o
	s.shop.moved[0]--
	s.shop.remaining[0] = shopStock + s.shop.moved[0]
	s.attemptBy(order, entryRequest, &response{class: acknowledged, status: 201, digest: digestOf(book)})
	s.attemptBy(order, entryJob, &response{class: acknowledged, status: 202, effect: "j-" + order})
	return o
}

func (s *story) attemptBy(order string, e entry, got *response) {
	s.attempt(order, got)
	for i := len(s.events) - 2; i < len(s.events); i++ {
		s.events[i].entry = e
	}
}

// TestCheckOfShops breaks one promise after the other.
func TestCheckOfShops(t *testing.T) {
	const k = "t-1"
	dead := func(cause string) outbox.Entry { return outbox.Entry{State: outbox.StateDead, Cause: cause} }
	revoked := func(s *story, when time.Time) *orderFacts {
		const k = "t-7-revoked"
		due := time.Unix(100, 0)
		o := &orderFacts{jobs: []jobFact{{"j", &due}}, revoked: &when}
		s.shop.orders[k], s.messages["j"] = o, dead("jobs: the authority of the job is revoked")
		s.attemptBy(k, entryJob, &response{class: acknowledged, effect: "j"})
		return o
	}
	before, after := time.Unix(99, 0), time.Unix(101, 0)
	tests := []struct {
		name   string
		happen func(s *story)
		want   string // the checks that find something
	}{
		{"as it should be", func(s *story) { placedWell(s, k); placedWell(s, "t-2") }, ""},
		{"reserved twice", func(s *story) {
			o := placedWell(s, k)
			o.reservations = append(o.reservations, reservationFact{"r2", -1})
		}, checkSecondEffect},
		{"charged twice", func(s *story) { placedWell(s, k).charges = []string{"a", "b"} }, checkSecondEffect},
		{"told of twice", func(s *story) {
			o := placedWell(s, k)
			o.notices = append(o.notices, o.notices[0])
		}, checkSecondEffect},
		{"an event twice", func(s *story) {
			o := placedWell(s, k)
			o.events = append(o.events, o.events[0])
		}, checkSecondEffect},
		{"a job done twice", func(s *story) {
			o := placedWell(s, k)
			o.done = append(o.done, o.done[0])
		}, checkSecondEffect},
		{"two jobs", func(s *story) {
			o := placedWell(s, k)
			o.jobs, o.done = append(o.jobs, jobFact{ID: "j2"}), append(o.done, doneFact{"j2", o.done[0].Receipt})
		}, checkSecondEffect},
		{"in the book, and not charged", func(s *story) { placedWell(s, k).charges = nil }, checkMissing},
		{"in the book, and not reserved", func(s *story) {
			placedWell(s, k).reservations = nil
			s.shop.moved[0], s.shop.remaining[0] = 0, shopStock
		}, checkMissing},
		{"a notice got lost", func(s *story) { placedWell(s, k).notices = nil }, checkMissing},
		{"an event got lost", func(s *story) { placedWell(s, k).events = nil }, checkMissing},
		{"a message is dead", func(s *story) {
			placedWell(s, k).notices = nil
			s.messages["n-"+k] = dead("gave up")
		}, checkMissing},
		{"a message waits in the end", func(s *story) {
			placedWell(s, k).notices = nil
			s.messages["n-"+k] = outbox.Entry{State: outbox.StatePending}
		}, checkMissing},
		{"a message waits, and the run goes on", func(s *story) {
			s.over = false
			placedWell(s, k).notices = nil
			s.messages["n-"+k] = outbox.Entry{State: outbox.StatePending}
		}, ""},
		{"a message was delivered without its effect, and the run goes on", func(s *story) {
			s.over = false
			placedWell(s, k).notices = nil
		}, checkMissing},
		{"a job without its effect", func(s *story) { placedWell(s, k).done = nil }, checkMissing},
		{"told of a job that is not there", func(s *story) { o := placedWell(s, k); o.jobs, o.done = nil, nil }, checkMissing},
		{"told, and not in the book", func(s *story) {
			s.attemptBy(k, entryWebhook, &response{class: acknowledged, digest: "d"})
		}, checkMissing},
		{"a notice of what is not in the book", func(s *story) {
			placedWell(s, k)
			s.attemptBy("t-2", entryRequest, nil)
			s.shop.orders["t-2"] = &orderFacts{notices: []noticeFact{{Seq: 9, Message: "x"}}}
		}, checkRolledBack + " " + checkStuck},
		{"the job got another receipt", func(s *story) { placedWell(s, k).done[0].Receipt = "other" }, checkDiffer},
		{"the webhook got another response", func(s *story) {
			placedWell(s, k)
			s.attemptBy(k, entryWebhook, &response{class: acknowledged, digest: "other"})
		}, checkDiffer},
		{"reserved, and nobody goes on", func(s *story) {
			s.attemptBy(k, entryRequest, nil)
			s.shop.orders[k] = &orderFacts{reservations: []reservationFact{{"r", -1}}}
		}, checkStuck},
		{"nobody could learn", func(s *story) {
			placedWell(s, k)
			s.attemptBy(k, entryWebhook, told(unavailable))
			s.add(event{kind: kindEnd, who: "again 1", key: k, entry: entryWebhook, text: endGaveUp})
		}, checkStuck},
		{"something waits in the end", func(s *story) { s.shop.stuck = []string{"message m"} }, checkStuck},
		{"an unexpected response", func(s *story) { s.attemptBy(k, entryWebhook, told(unexpected)) }, checkUnexpected},
		{"an effect of an order that was not sent", func(s *story) {
			placedWell(s, k)
			s.shop.orders["t-9"] = &orderFacts{}
		}, checkUnexpected},
		{"the stock is another", func(s *story) { placedWell(s, k); s.shop.remaining[0]-- }, checkMissing},
		{"out of order", func(s *story) {
			placedWell(s, k).notices[0].Seq = 7
			placedWell(s, "t-2")
		}, checkOrder},
		{"declined, and charged", func(s *story) {
			const k = "t-4-declined"
			o := placedWell(s, k)
			o.reservations, o.notices, o.events = append(o.reservations, reservationFact{"r", 1}), nil, nil
		}, checkAfterRefusal},
		{"declined, and still reserved", func(s *story) {
			const k = "t-4-declined"
			o := placedWell(s, k)
			o.charges, o.notices, o.events = nil, nil, nil
		}, checkMissing},
		{"forged, and reserved", func(s *story) {
			const k = "t-10-forged"
			s.attemptBy(k, entryWebhook, told(noEffect))
			s.shop.orders[k] = &orderFacts{reservations: []reservationFact{{"r", -1}}, written: []writtenFact{{}}}
		}, checkAfterRefusal + " " + checkMissing},
		{"revoked", func(s *story) { revoked(s, before) }, ""},
		{"revoked, and done", func(s *story) { revoked(s, before).done = []doneFact{{"j", ""}} }, checkAfterRefusal},
		{"revoked, and waiting", func(s *story) {
			revoked(s, before)
			s.messages["j"] = outbox.Entry{State: outbox.StatePending}
		}, checkMissing},
		{"revoked while it was due", func(s *story) { revoked(s, after) }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			s.shop = &shopFacts{orders: map[string]*orderFacts{}, remaining: map[int]int{}, moved: map[int]int{}}
			s.messages = map[string]outbox.Entry{}
			tt.happen(s)
			var found []string
			for _, v := range s.check() {
				found = append(found, v.Check)
			}
			if got := strings.Join(found, " "); got != tt.want {
				t.Errorf("found %q, want %q: %+v", got, tt.want, s.check())
			}
		})
	}
}
