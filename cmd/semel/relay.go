package main

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/cmd/semel/internal/settle"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/outbox/smtpsink"
	"github.com/semelhq/semel/webhook/send"
)

// relaySettings are the flags of the relay.
type relaySettings struct {
	store, sink, from string
	topics, headers   []string
	secrets           []string
	allowPrivate      bool
	useProxy          bool
	password          string
	smtpTLS           choice
	onDead, onUnknown choice
	attempts          int
	timeout           time.Duration
	inFlight          int
	lease, drain      time.Duration
	keep              time.Duration
	keepCount         int
	logFormat         choice
}

func (p *program) relayCommand() *cobra.Command {
	s := relaySettings{
		smtpTLS:   choice{value: "starttls", of: []string{"starttls", "none"}},
		onDead:    choice{value: "block", of: []string{"block", "skip"}},
		onUnknown: choice{value: "hold", of: []string{"hold", "retry"}},
		logFormat: choice{value: "text", of: []string{"text", "json"}},
	}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Deliver the messages that a service has enqueued",
		Long: `Delivers the messages of an outbox, for services in any language: a service inserts a
row into the table "outbox" (in PostgreSQL "semel.outbox") in the transaction of the
change that the message is about, and this program sends it. semel schema prints the
table and the meaning of its columns; a topic and a payload are enough.

  --sink https://host/path   each message is a POST. Its id goes along in
                             Idempotency-Key, by which the receiver drops repetitions.
  --sink smtp://host:587     each message is a mail: its payload is the text, and its
  --sink smtps://host:465    headers are the mail's (To, Subject and so on).

With --webhook-secret each message is a webhook, signed as Standard Webhooks says: its
id is the webhook-id, and must have no dots or colons. After any response but a 2xx it
is tried again, ten times over three days. After a 410 nothing more is sent until this
program is restarted. To change a secret, give the new one beside the old one.

Messages with the same topic and key are delivered in order, one at a time. A message
that fails is retried with growing delays, and after --max-attempts it is dead: semel
outbox shows and redrives it. Any number of relays may run.

When a relay dies, what it was delivering is delivered again, except for mail: a server
that has read a mail's last line has accepted it, and if the relay or the server fails
at that moment, nobody can know whether it was sent. Under --on-unknown hold it is
unknown until somebody decides; under retry it is sent again, with the same Message-ID.

Jobs, whose topics begin with "job:", are for workers of the service. This program
skips them, but delays each a little; if there are jobs, name the topics to deliver.

Sinks at private addresses are refused unless --allow-private is given. On SIGTERM or
Ctrl-C the relay finishes what it is delivering, for as long as --drain says.`,
		Example: `  semel relay --store sqlite:app.db --sink https://hooks.example.com/orders --topic orders
  semel relay --store sqlite:///var/lib/app/app.db --sink smtp://mail.internal:587 --topic mail --from 'Shop <shop@example.com>'
  SEMEL_STORE=postgres://app@db/app semel relay --sink https://hooks.example.com/orders --topic orders
  SEMEL_HEADER='Authorization: Bearer ...' semel relay --store sqlite:app.db --sink http://127.0.0.1:9000/events --allow-private`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.relay(cmd.Context(), cmd, s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.store, "store", "", "where messages are: sqlite:app.db, sqlite:///var/lib/app/app.db or postgres://user@host/database; made if it is not there (required)")
	f.StringVar(&s.sink, "sink", "", "where they go: an http, https, smtp or smtps URL (required)")
	f.StringSliceVar(&s.topics, "topic", nil, "deliver this topic only; can be given several times (default all)")
	f.StringArrayVar(&s.headers, "header", nil, "HTTP: a header of every request, as 'Name: value'; can be given several times")
	f.StringArrayVar(&s.secrets, "webhook-secret", nil, "HTTP: sign with this secret, as in whsec_...; several with commas between; better by its variable")
	f.BoolVar(&s.allowPrivate, "allow-private", false, "HTTP: connect to loopback, private and other addresses that are not public")
	f.BoolVar(&s.useProxy, "use-proxy", false, "HTTP: send through the proxy that HTTP_PROXY and its kin name")
	f.StringVar(&s.from, "from", "", "SMTP: sender of mails that name none")
	choiceFlag(cmd, &s.smtpTLS, "smtp-tls", "SMTP: what smtp:// means; none sends in the clear, for a server on this host")
	f.StringVar(&s.password, "smtp-password", "", "SMTP: password of the user that the URL names; better by its variable")
	choiceFlag(cmd, &s.onDead, "on-dead", "what becomes of a lane whose first message is dead or unknown: it waits, or goes on without it")
	choiceFlag(cmd, &s.onUnknown, "on-unknown", "what becomes of a mail that may have been sent: hold it until somebody decides, or send it again")
	f.IntVar(&s.attempts, "max-attempts", 0, "how often a message is tried (default 20 times, which take about six hours; webhooks 10 times)")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "longest time that one attempt may take")
	f.IntVar(&s.inFlight, "in-flight", 64, "most messages under way at the same time, for each topic named")
	f.DurationVar(&s.lease, "lease", 15*time.Second, "how long messages wait after their relay has died")
	f.DurationVar(&s.drain, "drain", 10*time.Second, "how long to wait for what is under way before ending")
	f.DurationVar(&s.keep, "keep", 24*time.Hour, "how long delivered messages are kept")
	f.IntVar(&s.keepCount, "keep-count", 100_000, "how many delivered messages are kept")
	choiceFlag(cmd, &s.logFormat, "log-format", "form of the log on standard error")
	fromEnv(cmd)
	return cmd
}

// closingSink is a sink with what ends it, and its schedule.
type closingSink struct {
	outbox.Sink
	close    func()
	schedule []time.Duration
}

// newSink makes the sink that --sink names.
func (s *relaySettings) newSink(cmd *cobra.Command, log *logger) (closingSink, error) {
	wrong := func(format string, args ...any) (closingSink, error) {
		return closingSink{}, usagef("%s "+format, append([]any{named(cmd, "sink")}, args...)...)
	}
	if s.sink == "" {
		return wrong("is not set; name a URL, as in --sink https://hooks.example.com/orders")
	}
	u, err := url.Parse(s.sink)
	if err != nil || u.Host == "" {
		return wrong("is not a URL with a host")
	}
	if len(s.secrets) > 0 {
		return s.newWebhookSink(cmd, u, log)
	}
	switch u.Scheme {
	case "http", "https":
		header, err := settle.Headers(s.headers)
		if err != nil {
			return closingSink{}, usagef("--%w", err)
		}
		sink, err := httpsink.New(httpsink.Config{
			URL: s.sink, Header: header, AllowPrivate: s.allowPrivate, UseProxyFromEnvironment: s.useProxy, MaxConns: s.inFlight,
		})
		if err != nil {
			return wrong("and what belongs to it cannot be used: %w", err)
		}
		return closingSink{Sink: sink, close: sink.Close}, nil
	case "smtp", "smtps":
		c := smtpsink.Config{Addr: u.Host, From: s.from, Password: s.password, Username: u.User.Username()}
		port := "587"
		switch {
		case u.Scheme == "smtps":
			c.TLS, port = smtpsink.ImplicitTLS, "465"
		case s.smtpTLS.value == "none":
			c.TLS, port = smtpsink.NoTLS, "25"
		}
		if _, ok := u.User.Password(); ok {
			return wrong("holds a password; give it by SEMEL_SMTP_PASSWORD")
		}
		if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return wrong("has a path or parameters; a mail server is a host and a port")
		}
		if u.Port() == "" {
			c.Addr = net.JoinHostPort(u.Hostname(), port)
		}
		sink, err := smtpsink.New(c)
		if err != nil {
			return wrong("and what belongs to it cannot be used: %w", err)
		}
		return closingSink{Sink: sink, close: func() {}}, nil
	}
	return wrong("is of scheme %q; it must be http, https, smtp or smtps", u.Scheme)
}

// newWebhookSink makes the sink that signs what it sends to --sink.
func (s *relaySettings) newWebhookSink(cmd *cobra.Command, u *url.URL, log *logger) (closingSink, error) {
	if len(s.headers) > 0 {
		return closingSink{}, usagef("%s and %s do not go together: a webhook has the headers of its message", named(cmd, "header"), named(cmd, "webhook-secret"))
	}
	e := send.Endpoint{URL: u.String(), Secrets: strings.Split(strings.Join(s.secrets, ","), ",")}
	endpoints := &send.Memory{}
	endpoints.Put(e)
	sink, err := send.New(send.Config{
		Endpoints: endpoints, AllowHTTP: true, AllowPrivate: s.allowPrivate, UseProxyFromEnvironment: s.useProxy, MaxPerEndpoint: s.inFlight, DisableAfter: -1,
		Observer: &send.Observer{Changed: func(ctx context.Context, e send.Endpoint, _ send.State) {
			if e.Disabled() {
				log.ErrorContext(ctx, "the receiver says that it is gone: nothing is sent any more, and messages are dead at once", "cause", e.Cause)
			}
		}},
	})
	if err == nil {
		e.ID = "sink" // of which Check needs one
		err = sink.Check(e)
	}
	if err != nil {
		return closingSink{}, usagef("%s or %s cannot be used: %w", named(cmd, "sink"), named(cmd, "webhook-secret"), err)
	}
	return closingSink{Sink: sink, close: sink.Close, schedule: send.Schedule()}, nil
}

func (p *program) relay(ctx context.Context, cmd *cobra.Command, s relaySettings) (err error) {
	log := newLog(p.stderr, s.logFormat.value)
	sink, err := s.newSink(cmd, log)
	if err != nil {
		return err
	}
	defer sink.close()
	if len(s.topics) == 0 {
		s.topics = []string{""}
	}
	config := outbox.Config{
		Lease: s.lease, Drain: s.drain, Observer: log.outbox(),
		Retention: outbox.Retention{Delivered: s.keep, MaxDelivered: s.keepCount},
	}
	messages := outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) error {
		if _, job := jobs.Queue(d.Topic); job {
			return outbox.Postpone(time.Minute, errors.New("this is a job, which is not for relays"))
		}
		return sink.Deliver(ctx, d)
	})
	for _, topic := range s.topics {
		r := outbox.Route{Topic: topic, Sink: messages, Schedule: sink.schedule, MaxAttempts: s.attempts, Timeout: s.timeout, MaxInFlight: s.inFlight}
		if s.onDead.value == "skip" {
			r.OnDead = outbox.DeadSkip
		}
		if s.onUnknown.value == "retry" {
			r.OnUnknown = outbox.UnknownRetry
		}
		config.Routes = append(config.Routes, r)
	}
	if len(s.topics) > 1 && s.topics[0] == "" {
		return usagef("%s is empty", named(cmd, "topic"))
	}
	config.Store = struct{ outbox.Store }{} // wrong settings are told before the store is opened, which may make it
	if _, err := outbox.New(config); err != nil {
		return usagef("the settings do not fit together: %w", err)
	}
	o, end, err := openOutbox(ctx, cmd, s.store, false)
	if err != nil {
		return err
	}
	defer func() {
		if e := end(context.Background()); e != nil {
			err = errors.Join(err, outboxFault("the store could not be closed", e))
		}
	}()
	config.Store = o
	relay, err := outbox.New(config)
	if err != nil {
		return usagef("the settings do not fit together: %w", err)
	}
	log.Info("relaying", "store", withoutSecrets(s.store), "sink", withoutSecrets(s.sink), "topics", strings.Join(s.topics, ","))
	if err := relay.Run(ctx); err != nil {
		return &fault{code: exitFailed, err: err, do: "Start it again, or another relay: nothing is lost."}
	}
	log.Info("stopped; everything that was under way is settled")
	return nil
}

// outbox logs what an operator of a relay must know.
func (l *logger) outbox() *outbox.Observer {
	attempt := func(a outbox.Attempted) []any {
		return []any{"topic", a.Topic, "id", a.ID, "attempt", a.Attempt, "err", a.Err}
	}
	late := false
	return &outbox.Observer{
		Status: func(ctx context.Context, all []outbox.TopicStatus) {
			for _, s := range all {
				if s.OldestAge >= time.Minute || s.Blocked > 0 {
					late = true
					l.WarnContext(ctx, "messages wait", "topic", s.Topic, "oldest", s.OldestAge.Round(time.Second), "pending", s.Pending, "blocked", s.Blocked, "dead", s.Dead, "unknown", s.Unknown)
				}
			}
			if late && len(all) == 0 {
				late = false
				l.InfoContext(ctx, "nothing waits any more")
			}
		},
		Retried: func(ctx context.Context, a outbox.Attempted) {
			l.InfoContext(ctx, "an attempt failed", append(attempt(a), "again in", a.Delay.Round(time.Millisecond))...)
		},
		Dead: func(ctx context.Context, a outbox.Attempted) {
			l.ErrorContext(ctx, "a message is dead: see semel outbox", attempt(a)...)
		},
		Unknown: func(ctx context.Context, a outbox.Attempted) {
			l.ErrorContext(ctx, "nobody can know whether a message has arrived: see semel outbox", attempt(a)...)
		},
		LeaseLost: func(ctx context.Context, a outbox.Attempted) {
			l.WarnContext(ctx, "a lease was lost: another relay delivers the message", attempt(a)...)
		},
		StoreFailed: func(ctx context.Context, call string, err error) {
			l.WarnContext(ctx, "store failed", "call", call, "err", err)
		},
	}
}
