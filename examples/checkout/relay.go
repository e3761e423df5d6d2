package main

import (
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/outbox/smtpsink"
	"github.com/semelhq/semel/webhook/send"
)

// newRelay makes what delivers the shop's messages. Many processes may run one.
func newRelay(store outbox.Store, c config) (*outbox.Relay, error) {
	provider, err := httpsink.New(httpsink.Config{URL: c.provider, AllowPrivate: true})
	if err != nil {
		return nil, err
	}
	mail, err := smtpsink.New(smtpsink.Config{Addr: c.mail, From: "Shop <shop@example.com>", TLS: smtpsink.NoTLS})
	if err != nil {
		return nil, err
	}
	// One endpoint. A service with customers keeps theirs in a table.
	warehouse, err := webhooks(send.Endpoint{ID: "warehouse", URL: c.warehouse, Secrets: []string{warehouseSecret}})
	if err != nil {
		return nil, err
	}
	return outbox.New(outbox.Config{Store: store, Lease: 5 * time.Second, Routes: []outbox.Route{
		// Who knows repetitions by their id may be asked again and again.
		{Topic: "charges", Sink: provider, Backoff: quick},
		{Topic: "warehouse", Sink: warehouse, Backoff: quick},
		// Hold: nobody gets two mails. What is in doubt, somebody decides.
		{Topic: "mail", Sink: mail, Backoff: quick, OnUnknown: outbox.UnknownHold},
	}})
}

// webhooks sends events to endpoints of this host, without TLS.
func webhooks(to ...send.Endpoint) (*send.Sink, error) {
	var endpoints send.Memory
	endpoints.Put(to...)
	return send.New(send.Config{Endpoints: &endpoints, AllowHTTP: true, AllowPrivate: true})
}

// quick suits a demonstration, as the lease does. The defaults are 1 s and 15 s.
const quick = 200 * time.Millisecond
