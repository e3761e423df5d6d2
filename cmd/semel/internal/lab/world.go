package lab

import (
	"context"
	"sync"
	"time"

	"github.com/semelhq/semel/outbox"
)

// mailTopic is the topic of the outbox that goes to the mail server.
const mailTopic = "mail"

// Mail is what has arrived at the lab's mail server, which accepts everything and
// knows no repetition.
type Mail struct {
	To        string    `json:"to"`
	Operation string    `json:"operation"`
	Reference string    `json:"reference"`
	Text      string    `json:"text"`
	At        time.Time `json:"at"`
}

// mostMails bounds what is remembered.
const mostMails = 1000

// world is what the app does not own.
type world struct {
	mu     sync.Mutex
	mails  []Mail
	change func() // there is something new
}

func (w *world) mail(to, reference, operation, text string) {
	w.mu.Lock()
	w.mails = append(w.mails[max(len(w.mails)-mostMails+1, 0):], Mail{to, operation, reference, text, time.Now()})
	w.mu.Unlock()
	w.change()
}

// Deliver takes mails out of the outbox.
func (w *world) Deliver(_ context.Context, d outbox.Delivery) error {
	w.mail(d.Headers["To"], d.Headers["Reference"], d.Type, string(d.Payload))
	return nil
}

// list returns the mails with this reference, or all, the latest first.
func (w *world) list(operation, reference string, most int) []Mail {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := []Mail{}
	for i := len(w.mails) - 1; i >= 0 && len(list) < most; i-- {
		if m := w.mails[i]; (operation == "" || m.Operation == operation) && (reference == "" || m.Reference == reference) {
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
