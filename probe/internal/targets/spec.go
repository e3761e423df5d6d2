package targets

import (
	"fmt"
	"net/http"
	"strconv"
)

// specification answers with an OpenAPI document. What it says of keys is what
// a draft of the field asks for: where they go, what they look like, whether
// they are required, whose they are, how long they are kept and what the
// responses are.
func (a *api) specification(w http.ResponseWriter, _ *http.Request) {
	post := map[string]any{
		"operationId": operationName,
		"summary":     "Make an order",
		"responses":   map[string]any{"201": map[string]string{"description": "The order was made"}},
	}
	if a.specified != noKeys {
		a.describe(post)
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]string{"title": "Orders", "version": "1"},
		"paths":   map[string]any{"/orders": map[string]any{"post": post}},
	})
}

func (a *api) describe(post map[string]any) {
	text := "Keys belong to an actor. Repeating a request with its idempotency key has no further effect."
	if a.natural {
		text = "Idempotency: a tenant has one order for each reference; a repetition is refused and names it. References are never forgotten."
	}
	if a.specified != noRetention && !a.natural {
		text += " Retention: keys are kept for 24 hours after the request was completed; after that, a key counts as new."
	}
	post["description"] = text
	responses := post["responses"].(map[string]any)
	response := func(status int, text string) {
		responses[strconv.Itoa(status)] = map[string]string{"description": text}
	}
	switch {
	case a.keyHeader != "":
		post["parameters"] = []any{map[string]any{
			"name": a.keyHeader, "in": "header", "required": !a.optional,
			"description": "Idempotency key: 1 to 255 visible characters",
			"schema":      map[string]any{"type": "string", "minLength": 1, "maxLength": 255},
		}}
	case a.keyBody != "":
		post["requestBody"] = map[string]any{"content": map[string]any{"application/json": map[string]any{"schema": map[string]any{
			"type": "object", "required": []string{a.keyBody},
			"properties": map[string]any{a.keyBody: map[string]any{
				"type": "string", "minLength": 1, "maxLength": 255, "description": "Idempotency key",
			}},
		}}}}
	default:
		response(http.StatusConflict, "The order exists already; Location names it")
		return
	}
	response(http.StatusBadRequest, "The idempotency key is malformed"+map[bool]string{false: ", or missing"}[a.optional])
	if a.rules.mismatch != http.StatusBadRequest {
		response(a.rules.mismatch, "The idempotency key was used for another request")
	}
	switch a.inFlight {
	case accepts:
		response(http.StatusAccepted, "A request with this idempotency key is in progress; Location says where to look")
	case limited:
		response(http.StatusTooManyRequests, "Too many requests at a time; nothing was done")
	case waits:
	default:
		response(http.StatusConflict, "A request with this idempotency key is in progress"+map[bool]string{true: ", or was completed: links.conflicting_resource_id names the order"}[a.rules.replay == reference])
	}
	if a.marker != "" {
		responses["201"] = map[string]any{
			"description": "The order was made",
			"headers": map[string]any{a.marker: map[string]any{
				"description": fmt.Sprintf("%s: true says that the response is a replay", a.marker), "schema": map[string]string{"type": "string"},
			}},
		}
	}
}
