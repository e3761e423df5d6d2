package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// TopicPrefix is the prefix of the topics of queues. A relay for all topics would
// treat jobs as messages, so name the topics of relays on the same store.
const TopicPrefix = "job:"

// Topic returns the topic of a queue.
func Topic(queue string) string { return TopicPrefix + queue }

// Queue returns the name of the queue of a topic. ok reports whether the topic
// is that of a queue.
func Queue(topic string) (name string, ok bool) { return strings.CutPrefix(topic, TopicPrefix) }

// Authority says with whose permission a job runs.
type Authority struct {
	Tenant string `json:"tenant,omitempty"`
	Actor  string `json:"actor,omitempty"`
	// Permissions are the relevant permissions of the actor when the job was
	// enqueued. Config.Authorize should grant a job only what the actor was
	// permitted then and still is.
	Permissions []string `json:"permissions,omitempty"`
}

// Job is work to be done. Its limits are those of an outbox.Message.
type Job struct {
	// ID makes the job unique. While the outbox holds a job, enqueueing another one
	// with the same ID fails with outbox.ErrDuplicate. While the id of a done job
	// is kept (Config.Retention), another job with it has no effect. If ID is
	// empty, Message generates one.
	ID string
	// Queue says which workers run the job, and Kind which of their handlers.
	// Required.
	Queue, Kind string
	// Args is passed to the handler, which defines its meaning.
	Args []byte
	// Key, if not empty, names a lane of the queue whose jobs run one after
	// another, in the order in which they were enqueued.
	Key string
	// NotBefore delays the job, by the store's clock.
	NotBefore time.Time
	// Authority says with whose permission the job runs.
	Authority Authority

	// What follows is told to handlers.

	// Attempt counts from 1, and starts again when a person redrives the job.
	Attempt    int
	EnqueuedAt time.Time
	// Prepared is the result of Handler.Prepare.
	Prepared any
}

// headerAuthority has a job's Authority, as JSON.
const headerAuthority = "job-authority"

// Message returns the message to enqueue for j, with an id. It does not contain
// the fields that are set for handlers.
func (j Job) Message() (outbox.Message, error) {
	m := outbox.Message{ID: j.ID, Topic: Topic(j.Queue), Type: j.Kind, Key: j.Key, Payload: j.Args, NotBefore: j.NotBefore}
	if m.ID == "" {
		m.ID = semel.NewKey()
	}
	authority, err := json.Marshal(j.Authority)
	if err != nil {
		return m, fmt.Errorf("jobs: %w", err)
	}
	if string(authority) != "{}" {
		m.Headers = map[string]string{headerAuthority: string(authority)}
	}
	if j.Queue == "" || j.Kind == "" {
		return m, errors.New("jobs: fields Queue and Kind are required")
	}
	if err := m.Validate(); err != nil {
		return m, fmt.Errorf("jobs: %w", err)
	}
	return m, nil
}

// FromMessage returns the job in a message.
func FromMessage(m outbox.Message) (j Job, err error) {
	queue, ok := Queue(m.Topic)
	if !ok || m.Type == "" {
		return j, errors.New("jobs: the message is not a job: its topic does not begin with " + TopicPrefix + ", or it has no type")
	}
	j = Job{ID: m.ID, Queue: queue, Kind: m.Type, Args: m.Payload, Key: m.Key, NotBefore: m.NotBefore}
	if text := m.Headers[headerAuthority]; text != "" {
		if err := json.Unmarshal([]byte(text), &j.Authority); err != nil {
			return j, errors.New("jobs: the header " + headerAuthority + " is not as Message writes it")
		}
	}
	return j, nil
}
