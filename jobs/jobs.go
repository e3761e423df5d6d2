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
	// Origin is the request that wanted it, for whoever follows what came of that.
	Origin semel.Origin

	// What follows is told to handlers.

	// Attempt counts from 1, anew after a person has run the job again.
	Attempt    int
	EnqueuedAt time.Time
	// Prepared is what Handler.Prepare returned.
	Prepared any
}

// headers of the message of a job.
const (
	headerAuthority = "job-authority" // Authority, as JSON
	headerOrigin    = "job-origin"    // semel.Origin, as JSON
)

// Message is the message to enqueue for j, with an id. What is told to handlers is
// no part of it.
func (j Job) Message() (outbox.Message, error) {
	m := outbox.Message{ID: j.ID, Topic: Topic(j.Queue), Type: j.Kind, Key: j.Key, Payload: j.Args, NotBefore: j.NotBefore, Headers: map[string]string{}}
	if m.ID == "" {
		m.ID = semel.NewKey()
	}
	for name, v := range map[string]any{headerAuthority: j.Authority, headerOrigin: j.Origin} {
		text, err := json.Marshal(v)
		if err != nil {
			return m, fmt.Errorf("jobs: %w", err)
		}
		if string(text) != "{}" {
			m.Headers[name] = string(text)
		}
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
	for name, v := range map[string]any{headerAuthority: &j.Authority, headerOrigin: &j.Origin} {
		if text := m.Headers[name]; text != "" {
			if err := json.Unmarshal([]byte(text), v); err != nil {
				return j, fmt.Errorf("jobs: the header %s is not as Message writes it", name)
			}
		}
	}
	return j, nil
}
