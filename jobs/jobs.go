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

// TopicPrefix is how the topics of queues begin. A relay for all topics would take
// jobs for messages, so name the topics of relays on the same store.
const TopicPrefix = "job:"

// Topic is the topic of a queue.
func Topic(queue string) string { return TopicPrefix + queue }

// Queue is the queue of a topic; ok is false if it is of none.
func Queue(topic string) (name string, ok bool) { return strings.CutPrefix(topic, TopicPrefix) }

// Authority is whose permission a job runs with.
type Authority struct {
	Tenant string `json:"tenant,omitempty"`
	Actor  string `json:"actor,omitempty"`
	// Permissions are those that the actor had when the job was enqueued, as far as
	// they matter to it. They are for Config.Authorize to compare: a job is to have
	// no more than both then and now.
	Permissions []string `json:"permissions,omitempty"`
}

// Job is work to be done. Its bounds are those of an outbox.Message.
type Job struct {
	// ID is what makes the job unique: to enqueue a second one with it is
	// outbox.ErrDuplicate while the outbox holds the first, and does nothing for as
	// long as the id of a done one is known (Config.Retention). Message makes one
	// where it is empty.
	ID string
	// Queue says which workers run it, and Kind which of their handlers. Required.
	Queue, Kind string
	// Args is what the handler is told; what it means is the handler's matter.
	Args []byte
	// Key, if there is one, names a lane of the queue whose jobs run one after the
	// other, in the order in which they were enqueued.
	Key string
	// NotBefore delays the job, by the store's clock.
	NotBefore time.Time
	// Authority is whose permission it runs with.
	Authority Authority

	// What follows is told to handlers.

	// Attempt counts from 1, anew after a person has run the job again.
	Attempt    int
	EnqueuedAt time.Time
	// Prepared is what Handler.Prepare returned.
	Prepared any
}

// headerAuthority has a job's Authority, as JSON.
const headerAuthority = "job-authority"

// Message is the message to enqueue for j, with an id. What is told to handlers is
// no part of it.
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

// FromMessage is the job that a message stands for.
func FromMessage(m outbox.Message) (j Job, err error) {
	queue, ok := Queue(m.Topic)
	if !ok || m.Type == "" {
		return j, errors.New("jobs: the message is no job: its topic does not begin with " + TopicPrefix + ", or it has no type")
	}
	j = Job{ID: m.ID, Queue: queue, Kind: m.Type, Args: m.Payload, Key: m.Key, NotBefore: m.NotBefore}
	if text := m.Headers[headerAuthority]; text != "" {
		if err := json.Unmarshal([]byte(text), &j.Authority); err != nil {
			return j, errors.New("jobs: the header " + headerAuthority + " is not as Message writes it")
		}
	}
	return j, nil
}
