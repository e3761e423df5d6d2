package main

import (
	"context"
	"net/http"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/torture"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/webhook"
)

// Defects of shops. Each is a mistake in how it uses a package.
const (
	// defectStepEarly has a step's effect in a transaction of its own, before that
	// of the step's result.
	defectStepEarly = "step-early"
	// defectChildKey calls the remote under a new key in each attempt.
	defectChildKey = "child-key-anew"
	// defectEntryKeys has each entry place orders under a key of its own.
	defectEntryKeys = "entry-keys"
	// defectEnqueueOutside enqueues messages outside of the step's transaction.
	defectEnqueueOutside = "enqueue-outside"
	// defectSettleFirst has a relay settle messages before it delivers them.
	defectSettleFirst = "relay-settles-first"
	// defectNoLane enqueues without a key what is to be in order.
	defectNoLane = "no-lane"
	// defectInboxFirst commits a message's id before its effect.
	defectInboxFirst = "inbox-first"
	// defectInboxMemory knows the ids of messages in the memory of the process.
	defectInboxMemory = "inbox-in-memory"
	// defectDeliveryID knows webhooks by their delivery instead of their event.
	defectDeliveryID = "webhook-delivery-id"
	// defectAnswerFirst answers a webhook before it is processed.
	defectAnswerFirst = "webhook-answer-first"
	// defectJobOutside has a job's effect outside of the transaction that settles it.
	defectJobOutside = "job-outside"
	// defectTrusted does not look at the authority of a job when it runs.
	defectTrusted = "authority-unchecked"
)

// shopDefects returns what each has a shop do.
func shopDefects() map[string]torture.ShopHooks {
	var mu sync.Mutex
	seen := map[string]bool{}
	return map[string]torture.ShopHooks{
		defectStepEarly:      {Within: outside("reserve")},
		defectEnqueueOutside: {Within: outside("enqueue")},
		defectJobOutside:     {Within: outside("job")},
		defectAnswerFirst: {Within: func(ctx context.Context, in torture.ShopParts, part string, do func(context.Context, pgx.Tx) error) error {
			if part != "event" {
				return inside(ctx, do)
			}
			go func() {
				ctx := context.WithoutCancel(ctx)
				in.Linger(ctx)
				_ = alone(ctx, in, do)
			}()
			return nil
		}},
		defectChildKey:    {Calls: func(http.RoundTripper) http.RoundTripper { return keyAnew{&http.Transport{MaxIdleConnsPerHost: 16}} }},
		defectEntryKeys:   {Key: func(entry, order string) string { return entry + ":" + order }},
		defectSettleFirst: {Relayed: func(o *postgres.Outbox) outbox.Store { return settledFirst{o} }},
		defectNoLane:      {Lane: func(string) string { return "" }},
		defectInboxFirst: {Notice: func(ctx context.Context, in torture.ShopParts, id string, do func(context.Context, pgx.Tx) error) (inbox.Outcome, error) {
			outcome, err := in.Inbox.Process(ctx, id, nothing)
			if err == nil && outcome == inbox.OutcomeDone {
				in.Linger(ctx)
				err = alone(ctx, in, do)
			}
			return outcome, err
		}},
		defectInboxMemory: {Notice: func(ctx context.Context, in torture.ShopParts, id string, do func(context.Context, pgx.Tx) error) (inbox.Outcome, error) {
			outcome, err := in.Inbox.Process(ctx, id, nothing)
			mu.Lock()
			defer mu.Unlock()
			if !seen[id] {
				err = alone(ctx, in, do)
				seen[id] = err == nil
			}
			return outcome, err
		}},
		defectDeliveryID: {Events: func(s webhook.Scheme) webhook.Scheme { return deliveryID{s} }},
		defectTrusted:    {Authorize: jobs.Trusted},
	}
}

func nothing(context.Context) error { return nil }

// inside does a part of the work where it belongs.
func inside(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		panic("no transaction")
	}
	return do(ctx, tx)
}

// alone does it in a transaction of its own.
func alone(ctx context.Context, in torture.ShopParts, do func(context.Context, pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, in.Pool, func(tx pgx.Tx) error { return do(ctx, tx) })
}

// outside has one part of the work done alone.
func outside(part string) func(context.Context, torture.ShopParts, string, func(context.Context, pgx.Tx) error) error {
	return func(ctx context.Context, in torture.ShopParts, at string, do func(context.Context, pgx.Tx) error) error {
		if at != part {
			return inside(ctx, do)
		}
		err := alone(ctx, in, do)
		in.Linger(ctx)
		return err
	}
}

// deliveryID takes the number of the delivery for that of the event.
type deliveryID struct{ webhook.Scheme }

// Verify implements webhook.Scheme.
func (d deliveryID) Verify(header http.Header, body []byte) (webhook.Event, error) {
	e, err := d.Scheme.Verify(header, body)
	e.ID += "." + header.Get(torture.HeaderDelivery)
	return e, err
}

// keyAnew sends each call under a new key.
type keyAnew struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (k keyAnew) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Idempotency-Key", `"`+semel.NewKey()+`"`)
	return k.RoundTripper.RoundTrip(r)
}

// settledFirst settles messages when they are claimed.
type settledFirst struct{ *postgres.Outbox }

// Exchange implements outbox.Store.
func (s settledFirst) Exchange(ctx context.Context, settle []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
	claimed, lost, err := s.Outbox.Exchange(ctx, settle, c)
	if err != nil || len(claimed) == 0 {
		return claimed, lost, err
	}
	var early []outbox.Settlement
	for _, m := range claimed {
		early = append(early, outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeDelivered})
	}
	_, _, err = s.Outbox.Exchange(ctx, early, outbox.Claim{})
	return claimed, lost, err
}
