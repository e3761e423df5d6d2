package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/webhook"
)

// WebhookSecret is what the provider signs its webhooks with. The lab's page and the
// probe are providers too.
const WebhookSecret = "whsec_c2VtZWwtbGFiLXdlYmhvb2stc2VjcmV0LTAx"

func newScheme() (*webhook.Standard, error) {
	return webhook.NewStandard(webhook.StandardConfig{Secrets: []string{WebhookSecret}})
}

// provider is who sends webhooks.
var provider = caller{Tenant: "acme", Actor: "provider"}

// provider identifies a webhook by its signature, and its key is the id of the event.
func (p *app) provider(r *http.Request, body []byte) (a Attempt, status int, wrong string) {
	e, err := p.scheme.Verify(r.Header, body)
	if err != nil {
		return a, http.StatusUnauthorized, "The webhook is not signed as Standard Webhooks says, with the lab's secret."
	}
	return Attempt{Key: e.ID, Event: e.ID, Tenant: provider.Tenant, Actor: provider.Actor}, 0, ""
}

// mostDeliveries bounds what one request has delivered.
const mostDeliveries = 10

// deliver is the provider: it sends a webhook with the body of r to the lab itself,
// ?times= times, as a provider does that has not heard the response.
func (l *Lab) deliver(w http.ResponseWriter, r *http.Request, o *Operation) {
	times, err := strconv.Atoi(r.FormValue("times"))
	body, unread := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || unread != nil || times < 1 || times > mostDeliveries {
		problem(w, http.StatusBadRequest, fmt.Sprintf("Send the body of the webhook, and ?times= from 1 to %d.", mostDeliveries))
		return
	}
	if l.Switches(o.Name).Redeliver {
		times++
	}
	to, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string })
	if !ok {
		problem(w, http.StatusInternalServerError, "The lab does not know where it listens.")
		return
	}
	event, client := "evt_"+random(8), &http.Client{Timeout: time.Duration(2*MostDelay) * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	statuses := []int{}
	for range times {
		header, err := l.scheme.Sign(event, body)
		if err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
		header.Set("Content-Type", "application/json")
		q, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://"+to.String()+"/hooks/"+o.Name, bytes.NewReader(body))
		if err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
		q.Header, q.GetBody = header, nil
		status := 0
		if resp, err := client.Do(q); err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		statuses = append(statuses, status)
	}
	writeJSON(w, http.StatusOK, map[string]any{"event": event, "statuses": statuses})
}

// graphql has mutations that are named like the operations, with the body of REST in
// the variables. Whatever happens is answered with 200, as GraphQL over HTTP does,
// and what went wrong is in errors.
func (p *app) graphql(w http.ResponseWriter, r *http.Request) {
	refuse := func(code, message string) {
		writeJSON(w, http.StatusOK, map[string]any{"errors": []any{map[string]any{"message": message, "extensions": map[string]any{"code": code}}}})
	}
	var asked struct {
		Query         string          `json:"query"`
		OperationName string          `json:"operationName"`
		Variables     json.RawMessage `json:"variables"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&asked); err != nil || !strings.Contains(asked.Query, "mutation") {
		refuse("BAD_REQUEST", "Send a mutation with operationName and variables.")
		return
	}
	for _, o := range Operations {
		if o.Name != asked.OperationName {
			continue
		}
		r.Body = io.NopCloser(bytes.NewReader(asked.Variables))
		r.Header.Set("Content-Type", "application/json")
		c := &capture{header: http.Header{}, status: http.StatusOK}
		p.operate(o, path{name: "graphql", identify: bearer}).ServeHTTP(c, r)
		if c.status >= 300 {
			var said struct {
				Detail string `json:"detail"`
			}
			_ = json.Unmarshal(c.body.Bytes(), &said)
			if again := c.header.Get("Retry-After"); again != "" {
				w.Header().Set("Retry-After", again)
			}
			refuse(strings.ToUpper(strings.ReplaceAll(http.StatusText(c.status), " ", "_")), said.Detail)
			return
		}
		if replayed := c.header.Get("Idempotency-Replayed"); replayed != "" {
			w.Header().Set("Idempotency-Replayed", replayed)
		}
		writeJSON(w, http.StatusOK, map[string]any{"data": map[string]any{o.Name: json.RawMessage(c.body.Bytes())}})
		return
	}
	refuse("BAD_REQUEST", "There is no such operation.")
}
