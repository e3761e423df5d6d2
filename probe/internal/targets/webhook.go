package targets

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// webhookKey signs deliveries, by Standard Webhooks.
const webhookKey = "a secret that only the tests know"

// WebhookSecret is what to sign deliveries with.
var WebhookSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte(webhookKey))

// tolerance is how far the signed time may be from now.
const tolerance = 5 * time.Minute

// hookRules are what is wrong with a receiver.
type hookRules struct {
	forgetful  bool // does not know events again
	trusting   bool // does not look at the signature
	anyTime    bool // does not look at the time
	doubleBody bool // an event id with another body is another event
}

// hooks receives events: one event is one order.
type hooks struct {
	shop

	hookRules

	inbox sync.Mutex
	seen  map[string][sha256.Size]byte
}

func (h *hooks) handler() http.Handler {
	h.seen = map[string][sha256.Size]byte{}
	mux := http.NewServeMux()
	h.read(mux)
	mux.HandleFunc("POST /hooks", h.receive)
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"openapi": "3.1.0",
			"info":    map[string]string{"title": "Hooks", "version": "1"},
			"paths": map[string]any{"/hooks": map[string]any{"post": map[string]any{
				"operationId": "hooks.receive",
				"description": "Standard Webhooks. Idempotency: an event takes effect once for each webhook-id. Retention: ids are kept for 30 days.",
				"responses": map[string]any{
					"200": map[string]string{"description": "The event has taken effect, now or before"},
					"400": map[string]string{"description": "The signature or its time is wrong"},
					"422": map[string]string{"description": "The webhook-id was used for another event"},
				},
			}}},
		})
	})
	return mux
}

func (h *hooks) receive(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("webhook-id")
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var event struct {
		Type      string `json:"type"`
		Reference string `json:"reference"`
		Quantity  int    `json:"quantity"`
	}
	refuse := func(status int, why string) {
		h.audit(r, caller{}, "hooks.receive", id, event.Reference, "refused")
		problem(w, status, why)
	}
	if err != nil || id == "" {
		refuse(http.StatusBadRequest, "webhook-id and a body are needed")
		return
	}
	if why := h.verify(r, id, raw); why != "" {
		refuse(http.StatusBadRequest, why)
		return
	}
	if err := json.Unmarshal(raw, &event); err != nil || event.Reference == "" {
		refuse(http.StatusBadRequest, "this is no event")
		return
	}
	if h.failing.Load() {
		h.audit(r, caller{}, "hooks.receive", id, event.Reference, "failed")
		problem(w, http.StatusInternalServerError, "the event could not be handled")
		return
	}
	print := sha256.Sum256(raw)
	name := id
	if h.doubleBody {
		name += string(print[:])
	}
	// The event and its effect are one step: nobody sees one without the other.
	h.inbox.Lock()
	before, known := h.seen[name]
	if !known || h.forgetful {
		h.seen[name] = print
		h.add(order{
			ID: h.mint(), Reference: event.Reference, Item: event.Type, Quantity: event.Quantity, Tenant: "acme", Actor: "webhook", Status: "paid",
		})
	}
	h.inbox.Unlock()
	switch {
	case known && !h.forgetful && before != print:
		refuse(http.StatusUnprocessableEntity, "the webhook-id was used for another event")
		return
	case known && !h.forgetful:
		h.audit(r, caller{}, "hooks.receive", id, event.Reference, "duplicate")
	default:
		h.audit(r, caller{}, "hooks.receive", id, event.Reference, "executed")
	}
	writeJSON(w, http.StatusOK, map[string]bool{"received": true})
}

// verify says what is wrong with a delivery's signature.
func (h *hooks) verify(r *http.Request, id string, raw []byte) string {
	stamp := r.Header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return "webhook-timestamp is no time"
	}
	if age := time.Since(time.Unix(seconds, 0)).Abs(); age > tolerance && !h.anyTime {
		return "webhook-timestamp is out of tolerance"
	}
	if h.trusting {
		return ""
	}
	want := signature(id, stamp, raw)
	for s := range strings.SplitSeq(r.Header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(s), []byte(want)) {
			return ""
		}
	}
	return "the signature is wrong"
}

func signature(id, stamp string, raw []byte) string {
	mac := hmac.New(sha256.New, []byte(webhookKey))
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(raw)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
