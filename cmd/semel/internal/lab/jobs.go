package lab

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// This file is the way of a job: accepted with 202, and done later by a worker, under
// the trace id of the request.

// task is what a job is told.
type task struct {
	Call          json.RawMessage
	Trace         string
	Tenant, Actor string
}

// queueName is the queue of all operations. A job's kind is its operation.
const queueName = "lab"

// mostTries is how often a job is tried.
const mostTries = 5

// accept is what defences stand in front of, for jobs: it has the work done later.
func (p *app) accept(o *Operation, s Switches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := attemptOf(r.Context())
		text, err := readBody(r)
		c, ok := understand(w, r, o, s)
		if !ok {
			return
		}
		ctx := context.WithoutCancel(r.Context())
		_ = wait(ctx, s.Before.duration())
		args, marshal := json.Marshal(task{text, c.trace, c.who.Tenant, c.who.Actor})
		job := jobs.Job{ID: "job_" + random(8), Queue: queueName, Kind: o.Name, Args: args, Authority: jobs.Authority{Tenant: c.who.Tenant, Actor: c.who.Actor}}
		if x, ok := semel.CurrentExecution(ctx); ok {
			// Whoever accepts it again accepts the same job.
			job.ID, err = x.ChildKey("job")
		}
		if err = errors.Join(err, marshal); err == nil {
			if s.Queue {
				err = p.enqueueJob(ctx, job)
			} else {
				err = p.memory.add(job)
			}
		}
		if err != nil {
			w.Header().Set("Retry-After", "1")
			problem(w, http.StatusServiceUnavailable, "It was not accepted. Try again with the same key.")
			return
		}
		a.Job = job.ID
		a.note("accepted")
		_ = wait(ctx, s.After.duration())
		if s.FailAfter && p.outside.First("failure", *a) {
			problem(w, http.StatusInternalServerError, "Something went wrong.")
			return
		}
		at := "/jobs/" + o.Name + "/" + job.ID
		w.Header().Set("Location", at)
		writeJSON(w, http.StatusAccepted, map[string]any{"job": job.ID, "status": "queued", "status_url": at})
	})
}

func (p *app) enqueueJob(ctx context.Context, job jobs.Job) error {
	m, err := job.Message()
	if err != nil {
		return err
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := p.enqueue(ctx, tx, m); err != nil {
		err = errors.Join(err, tx.Rollback())
		if errors.Is(err, outbox.ErrDuplicate) {
			return nil // it was accepted before
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	p.outbox.Wake()
	return nil
}

// newWorker does jobs out of the database, each in one transaction with the fact that
// it is done.
func (p *app) newWorker() (*jobs.Worker, error) {
	handlers := map[string]jobs.Handler{}
	for _, o := range Operations {
		handlers[o.Name] = jobs.Handler{Handle: func(ctx context.Context, j jobs.Job) error {
			tx, _ := p.tx(ctx)
			return p.attemptJob(ctx, o, j, func(ctx context.Context, c call, a *Attempt) (Effect, error) {
				e, err := p.performIn(ctx, tx, c, 0, p.enqueueHere)
				if err == nil {
					a.midway("written, and not committed yet")
				}
				return e, err
			})
		}}
	}
	return jobs.New(jobs.Config{
		Store: p.outbox, Inbox: p.inbox, Handlers: handlers, Authorize: jobs.Trusted, // the lab believes everybody
		Queues: []jobs.QueueConfig{{Name: queueName, Workers: 4, MaxAttempts: mostTries, Backoff: 100 * time.Millisecond, MaxBackoff: time.Second}},
		Relay: outbox.Config{
			Lease: lease, PollMax: 200 * time.Millisecond,
			Observer: &outbox.Observer{Delivered: func(context.Context, outbox.Attempted) { p.outside.Settled() }},
		},
	})
}

// attemptJob makes an attempt at a job, and has it in the trail.
func (p *app) attemptJob(ctx context.Context, o *Operation, j jobs.Job, do func(context.Context, call, *Attempt) (Effect, error)) error {
	var t task
	c := call{operation: o, switches: p.outside.Switches(o.Name), job: j.ID}
	if err := json.Unmarshal(j.Args, &t); err != nil {
		return jobs.Cancel(err)
	}
	if err := json.Unmarshal(t.Call, &c); err != nil {
		return jobs.Cancel(err)
	}
	c.who, c.trace = caller{t.Tenant, t.Actor}, t.Trace
	a := &Attempt{Path: "worker", Operation: o.Name, Tenant: t.Tenant, Actor: t.Actor, Reference: c.Reference, Trace: t.Trace, Job: j.ID}
	ctx = a.begin(ctx, p.outside)
	e, err := do(ctx, c, a)
	switch {
	case errors.Is(err, errAgain):
		a.Decision = decidedCollision
		a.note("the database refuses it: it was done before")
		a.end(http.StatusConflict)
		return jobs.Cancel(err)
	case errors.Is(err, errInvalid):
		a.end(http.StatusUnprocessableEntity)
		return jobs.Cancel(err)
	case err == nil && c.switches.FailAfter && p.outside.First("job", *a):
		a.note("the worker fails after the effect")
		err = errors.New("something went wrong")
	}
	if err != nil {
		a.note("it failed, and is tried again: " + err.Error())
		a.end(http.StatusInternalServerError)
		return err
	}
	a.Effect = e.ID
	a.end(http.StatusOK)
	return nil
}

// memoryQueue holds jobs in memory.
//
// DEFECT(queue): what waits here was promised, and ends with the process; and that a
// job is done is known to nobody until after its effect, so that one that fails in
// between is done again. Lesson: a promise is a row, and is kept in the transaction that
// crosses it out.
type memoryQueue struct {
	waiting chan jobs.Job

	mu   *sync.Mutex
	fate map[string]string // of the latest jobs
}

func newMemoryQueue() memoryQueue {
	return memoryQueue{make(chan jobs.Job, 100), new(sync.Mutex), map[string]string{}}
}

func (q memoryQueue) add(j jobs.Job) error {
	q.set(j.ID, "queued")
	select {
	case q.waiting <- j:
		return nil
	default:
		return errors.New("the queue is full")
	}
}

func (q memoryQueue) set(id, fate string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.fate) > mostAttempts {
		clear(q.fate)
	}
	q.fate[id] = fate
}

func (p *app) workFromMemory(ctx context.Context) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case j := <-p.memory.waiting:
					p.doFromMemory(ctx, j)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	all.Wait()
}

func (p *app) doFromMemory(ctx context.Context, j jobs.Job) {
	for try := range mostTries {
		if try > 0 && wait(ctx, 100*time.Millisecond) != nil {
			return
		}
		err := p.attemptJob(ctx, operationNamed(j.Kind), j, func(ctx context.Context, c call, a *Attempt) (Effect, error) {
			a.midway("taken out of memory")
			e, err := p.perform(ctx, c, a.note)
			a.Effect = e.ID // whatever becomes of the job
			return e, err
		})
		if err == nil {
			p.memory.set(j.ID, "done")
			return
		}
		if errors.Is(err, errAgain) || errors.Is(err, errInvalid) {
			break
		}
	}
	p.memory.set(j.ID, "failed")
}

// showJob answers what has become of a job.
func (p *app) showJob(w http.ResponseWriter, r *http.Request, o *Operation) {
	id := r.PathValue("id")
	made, err := p.madeBy(r.Context(), o, id)
	if err == nil && len(made) > 0 {
		writeJSON(w, http.StatusOK, map[string]any{"job": id, "status": "done", "id": made[0].ID})
		return
	}
	p.memory.mu.Lock()
	status := p.memory.fate[id]
	p.memory.mu.Unlock()
	if err == nil && status == "" {
		var e outbox.Entry
		if e, err = p.outbox.Find(r.Context(), id); err == nil {
			status = map[outbox.State]string{outbox.StateDead: "failed", outbox.StateDelivered: "done"}[e.State]
			if status == "" {
				status = "queued"
			}
		}
	}
	switch {
	case err == nil && status != "":
		writeJSON(w, http.StatusOK, map[string]any{"job": id, "status": status})
	case errors.Is(err, outbox.ErrNotFound):
		problem(w, http.StatusNotFound, "There is no such job, or it is forgotten.")
	default:
		problem(w, http.StatusInternalServerError, "The jobs cannot be read; a retry is safe.")
	}
}
