package lab

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Topics of the outbox: what goes to the mail server, and to the endpoints of others.
const (
	mailTopic = "mail"
	hookTopic = "hook"
)

// Mail is what has arrived at the lab's mail server, or at the endpoints for its
// webhooks. They accept everything and know no repetition.
type Mail struct {
	Topic     string    `json:"topic"` // mail or hook
	ID        string    `json:"id"`    // of the message in the outbox, if it came from there
	To        string    `json:"to"`
	Operation string    `json:"operation"`
	Reference string    `json:"reference"`
	Text      string    `json:"text"`
	Trace     string    `json:"trace_id"` // of the request that it is because of
	At        time.Time `json:"at"`
}

// sending is what arrives of a message.
func sending(m outbox.Message) Mail {
	operation, _, _ := strings.Cut(m.Type, ".")
	return Mail{m.Topic, m.ID, m.Headers["To"], operation, m.Headers["Reference"], string(m.Payload), m.Headers["Trace"], time.Now()}
}

// mostMails bounds what is remembered.
const mostMails = 1000

// world is what the app does not own.
type world struct {
	mu     sync.Mutex
	mails  []Mail
	change func() // there is something new
}

func (w *world) arrive(m Mail) {
	w.mu.Lock()
	w.mails = append(w.mails[max(len(w.mails)-mostMails+1, 0):], m)
	w.mu.Unlock()
	w.change()
}

// list returns the mails with this reference, or all, the latest first.
func (w *world) list(operation, reference string, most int) []Mail {
	return w.find(mailTopic, operation, reference, most)
}

// hooks returns the webhooks, as list does mails.
func (w *world) hooks(operation, reference string, most int) []Mail {
	return w.find(hookTopic, operation, reference, most)
}

// because returns what was sent because of a request.
func (w *world) because(trace string) (list []Mail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mails {
		if m.Trace == trace {
			list = append(list, m)
		}
	}
	return list
}

func (w *world) find(topic, operation, reference string, most int) []Mail {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := []Mail{}
	for _, m := range slices.Backward(w.mails) {
		if len(list) < most && m.Topic == topic && (operation == "" || m.Operation == operation) && (reference == "" || m.Reference == reference) {
			list = append(list, m)
		}
	}
	return list
}

func (w *world) clear() {
	w.mu.Lock()
	w.mails = nil
	w.mu.Unlock()
	w.change()
}
