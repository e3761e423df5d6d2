package send

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/webhook"
)

// Config configures a Sink. Endpoints is required.
type Config struct {
	Endpoints Endpoints
	// Scheme returns the signer for an endpoint's secrets, at each attempt. Its
	// errors must not contain the secrets. Default: Standard Webhooks, by
	// webhook.NewStandard.
	Scheme func(secrets []string) (webhook.Signer, error)

	// DisableAfter is how long an endpoint may fail without a delivery in
	// between before it is disabled. Default 5 days; a negative value means
	// forever.
	DisableAfter time.Duration
	// MaxPerEndpoint is the maximum number of concurrent deliveries to one
	// endpoint in this process. The relay's MaxInFlight should be several times
	// as large. Default 16.
	MaxPerEndpoint int

	// AllowHTTP allows endpoints with http URLs. By default they must be https.
	AllowHTTP bool
	// AllowPrivate, UseProxyFromEnvironment, DialTimeout and TLS are those of
	// httpsink.Config. By default nothing is sent to addresses that are not
	// public, even if a public name resolves to one.
	AllowPrivate            bool
	UseProxyFromEnvironment bool
	DialTimeout             time.Duration
	TLS                     *tls.Config

	// Now is the clock of State. Default time.Now.
	Now func() time.Time
	// Observer, if not nil, is notified of events.
	Observer *Observer
}

// Observer is notified of changes of endpoints. Every field may be nil. Functions
// are called concurrently by the delivering goroutines and must not block. The
// outcomes of messages are reported to the relay's observer.
type Observer struct {
	// Changed is called when the sink has changed the State of an endpoint. If
	// the endpoint is now disabled, notify its owner.
	Changed func(ctx context.Context, e Endpoint, was State)
	// EndpointsFailed is called when a call of Endpoints has failed. It is tried
	// again.
	EndpointsFailed func(ctx context.Context, id, call string, err error)
}

// Schedule returns the delays after failed attempts in the example of Standard
// Webhooks: ten attempts over 75 h 35 min 5 s.
func Schedule() []time.Duration {
	return []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
		10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
}

// Sink is an outbox.Sink that sends webhooks. New makes one.
type Sink struct {
	config Config
	client *httpsink.Client
	gates  gates
}

// New returns a sink, or an error that lists everything wrong with c.
func New(c Config) (*Sink, error) {
	if c.Scheme == nil {
		c.Scheme = func(secrets []string) (webhook.Signer, error) {
			return webhook.NewStandard(webhook.StandardConfig{Secrets: secrets})
		}
	}
	if c.DisableAfter == 0 {
		c.DisableAfter = 5 * 24 * time.Hour
	}
	if c.MaxPerEndpoint == 0 {
		c.MaxPerEndpoint = 16
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Observer == nil {
		c.Observer = &Observer{}
	}
	var errs []error
	if c.Endpoints == nil {
		errs = append(errs, errors.New("field Endpoints is nil"))
	}
	if c.MaxPerEndpoint < 0 {
		errs = append(errs, errors.New("field MaxPerEndpoint must be positive"))
	}
	client, err := httpsink.NewClient(httpsink.ClientConfig{
		AllowPrivate: c.AllowPrivate, UseProxyFromEnvironment: c.UseProxyFromEnvironment, DialTimeout: c.DialTimeout, TLS: c.TLS,
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("webhook: send: config: %w", err)
	}
	return &Sink{config: c, client: client, gates: newGates(c.MaxPerEndpoint)}, nil
}

// Close closes idle connections.
func (s *Sink) Close() { s.client.Close() }

// Route returns a route for the topic with the delays of Schedule. Ordered
// events of an endpoint go on after one of them is dead.
func (s *Sink) Route(topic string) outbox.Route {
	return outbox.Route{
		Topic: topic, Sink: s, Schedule: Schedule(), Timeout: 20 * time.Second, MaxInFlight: max(128, 4*s.config.MaxPerEndpoint),
		OnDead: outbox.DeadSkip, OnUnknown: outbox.UnknownRetry,
	}
}

// Check reports what is wrong with an endpoint. Call it when a customer adds one.
// It does not connect; the address is checked at each delivery. The error contains
// neither URL nor secrets.
func (s *Sink) Check(e Endpoint) error {
	_, err := s.url(e)
	_, err2 := s.sign(e, "check", []byte("{}"))
	if err := errors.Join(checkID("endpoint", e.ID, MaxEndpointID), err, err2); err != nil {
		return fmt.Errorf("webhook: endpoint: %w", err)
	}
	return nil
}

func (s *Sink) url(e Endpoint) (*url.URL, error) {
	u, err := httpsink.ParseURL(e.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("its URL %w", err)
	case u.Scheme != "https" && !s.config.AllowHTTP:
		return nil, errors.New("its URL must be https")
	}
	return u, nil
}

func (s *Sink) sign(e Endpoint, event string, body []byte) (http.Header, error) {
	signer, err := s.config.Scheme(e.Secrets)
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be used: %w", err)
	}
	header, err := signer.Sign(event, body)
	if err != nil {
		return nil, fmt.Errorf("the event cannot be signed: %w", err)
	}
	return header, nil
}

// lookupPause is when a message comes back whose endpoint could not be looked up.
const lookupPause = 15 * time.Second

// Deliver implements outbox.Sink.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) error {
	event, id, named := strings.Cut(d.ID, ":")
	err := checkID("event", event, MaxEventID)
	if named {
		err = errors.Join(err, checkID("endpoint", id, MaxEndpointID))
	}
	where := "webhook"
	if id != "" {
		where += ": endpoint " + id
	}
	if err == nil {
		err = s.deliver(ctx, d, event, id)
	} else {
		err = outbox.Permanent(err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

func (s *Sink) deliver(ctx context.Context, d outbox.Delivery, event, id string) error {
	g, wait := s.gates.enter(id)
	if g == nil {
		return outbox.Postpone(wait, errors.New("its places are taken"))
	}
	var told result
	defer func() { s.gates.leave(id, told) }()

	e, err := s.config.Endpoints.Endpoint(ctx, id)
	switch {
	case errors.Is(err, ErrNoEndpoint):
		told.gone = true
		return outbox.Permanent(errors.New("is not there"))
	case err != nil:
		s.failed(ctx, id, "endpoint", err)
		return outbox.Postpone(lookupPause+rand.N(lookupPause), errors.New("could not be looked up"))
	case e.Disabled():
		told.gone = true
		return outbox.Permanent(errDisabled(e.Cause))
	}
	e.ID = id
	to, err := s.url(e)
	if err != nil {
		return err
	}
	header, err := s.sign(e, event, d.Payload)
	if err != nil {
		return err
	}
	header.Set("User-Agent", "semel-webhook")
	if !has(d.Headers, "Content-Type") {
		header.Set("Content-Type", "application/json")
	}

	began := time.Now()
	a, err := s.client.Post(ctx, to, d.Message, header)
	if errors.Is(err, httpsink.ErrHeader) {
		return err
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return &noAnswerError{"the attempt was broken off", err} // by the relay, so it says nothing of the endpoint
	}
	told = result{tried: true, ok: err == nil && a.Status/100 == 2, took: time.Since(began)}
	if told.ok {
		if !e.FailingSince.IsZero() {
			_, _ = s.update(ctx, e, State{})
		}
		return nil
	}
	if err != nil {
		err = noAnswer(err)
	} else {
		err = answered(a.Status)
	}
	told.after = a.RetryAfter

	now := s.config.Now().UTC().Truncate(time.Microsecond)
	next := e.State
	switch {
	case a.Status == http.StatusGone:
		next.DisabledAt, next.Cause = now, CauseGone
	case e.FailingSince.IsZero():
		next.FailingSince = now
	case s.config.DisableAfter > 0 && now.Sub(e.FailingSince) >= s.config.DisableAfter:
		next.DisabledAt, next.Cause = now, CauseFailing
	default:
		return retry(a, err)
	}
	changed, failed := s.update(ctx, e, next)
	if next.Disabled() && changed && failed == nil {
		told.gone = true
		return outbox.Permanent(fmt.Errorf("%w, so it %w", err, errDisabled(next.Cause)))
	}
	// If it was to be disabled, the next attempt finds it disabled by another, or
	// mended, or tries once more.
	return retry(a, err)
}

func retry(a httpsink.Answer, err error) error {
	if a.Told {
		return outbox.RetryAfter(a.RetryAfter, err)
	}
	return err
}

func errDisabled(cause string) error {
	return fmt.Errorf("is disabled: %s", strings.ToValidUTF8(cause[:min(len(cause), 64)], ""))
}

func answered(status int) error {
	if status/100 == 3 {
		return fmt.Errorf("answered %d, a redirection, which is not followed", status)
	}
	return fmt.Errorf("answered %d", status)
}

// update changes the state of an endpoint, even where the attempt has used up its
// time.
func (s *Sink) update(ctx context.Context, e Endpoint, to State) (bool, error) {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	changed, err := s.config.Endpoints.Update(within, e, to)
	if err != nil {
		s.failed(ctx, e.ID, "update", err)
		return false, err
	}
	if changed && s.config.Observer.Changed != nil {
		was := e.State
		e.State = to
		s.config.Observer.Changed(ctx, e, was)
	}
	return changed, nil
}

func (s *Sink) failed(ctx context.Context, id, call string, err error) {
	if s.config.Observer.EndpointsFailed != nil {
		s.config.Observer.EndpointsFailed(ctx, id, call, err)
	}
}

func has(headers map[string]string, name string) bool {
	for h := range headers {
		if strings.EqualFold(h, name) {
			return true
		}
	}
	return false
}

// noAnswerError says in words of our own why there was no answer: what is wrapped
// may repeat the URL, or what the endpoint has sent.
type noAnswerError struct {
	text string
	err  error
}

func (e *noAnswerError) Error() string { return e.text }

func (e *noAnswerError) Unwrap() error { return e.err }

func noAnswer(err error) error {
	text := "the connection broke before there was an answer, or what came was no HTTP"
	var number syscall.Errno
	switch {
	case errors.Is(err, httpsink.ErrAddress):
		text = "its address is not public"
	case errors.Is(err, context.DeadlineExceeded):
		text = "no answer came in time"
	case is[*net.DNSError](err):
		text = "its name cannot be resolved"
	case is[*tls.CertificateVerificationError](err):
		text = "its certificate is not valid"
	case is[tls.RecordHeaderError](err), is[tls.AlertError](err):
		text = "it does not speak TLS as it should"
	case errors.As(err, &number):
		text = "no connection: " + number.Error()
	case isTimeout(err):
		text = "no connection in time"
	}
	return &noAnswerError{text, err}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
