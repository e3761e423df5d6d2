package lab

import (
	"net/http"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// guarded protects next with semel, as a user would wire it: a middleware behind
// the authentication. Only what a user can get wrong is left to s.
func (l *Lab) guarded(operation string, s Switches, next http.Handler) (http.Handler, error) {
	config := semelhttp.Config{
		Guard:      l.guard,
		RequireKey: s.Key == KeyRequired,
		Scope: func(r *http.Request) (semel.Scope, error) {
			a := attemptOf(r.Context())
			if !s.Scope {
				// DEFECT(scope): all callers share the keys of all operations. Lesson: the scope
				// comes from who is signed in.
				return semel.Scope{Actor: "everybody", Operation: "everything"}, nil
			}
			return semel.Scope{Tenant: a.Tenant, Actor: a.Actor, Operation: operation}, nil
		},
	}
	if !s.Fingerprint {
		// DEFECT(fingerprint): whatever is asked for counts as the same request. Lesson: leave out
		// of the fingerprint what changes from try to try, and nothing else.
		config.KeyOf = func(r *http.Request, _ []byte) (string, semel.Fingerprint, error) {
			key, err := semelhttp.ParseKey(r.Header[semelhttp.HeaderKey], false)
			return key, semel.FingerprintOf([]byte("anything")), err
		}
	}
	protect, err := semelhttp.New(config)
	if err != nil {
		return nil, err
	}
	return protect(next), nil
}

// guardedEvents is guarded for webhooks: the id of the event is the key, and all its
// deliveries are one request.
func (l *Lab) guardedEvents(operation string, s Switches, next http.Handler) (http.Handler, error) {
	once, err := webhook.New(webhook.Config{Guard: l.guard, Scheme: l.scheme, Name: operation, Sender: provider.Actor, Tenant: provider.Tenant})
	if err != nil {
		return nil, err
	}
	return once(next), nil
}
