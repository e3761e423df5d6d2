package lab

import (
	"fmt"
	"strings"
)

// Ways are those that lead to an operation, and that the probe can take.
var Ways = []string{"rest", "page", "graphql", "webhook", "job"}

// EnvSecret names the environment variable in which plans for webhooks look for
// WebhookSecret: a plan holds no credentials.
const EnvSecret = "SEMEL_LAB_WEBHOOK_SECRET"

// Plan returns what the probe needs to know of an operation of a lab at addr, host
// and port, whose switches are s, to try it in one of Ways: a plan that runs as it is,
// but for webhooks, which need EnvSecret.
func Plan(addr, way string, o *Operation, s Switches) []byte {
	body := strings.ReplaceAll(o.Example, "REF", "{{.reference}}")
	contract := `{profile: ietf, replay_header: Idempotency-Replayed, missing: [400]}`
	if s.Key != KeyRequired {
		// The service promises nothing to whoever sends none.
		contract = strings.Replace(contract, "[400]", "[]", 1)
	}
	url, key, pointer, within := "/v1/"+o.Name, "{header: Idempotency-Key}", "/id", ""
	content := "json: " + body
	signature, more := "", ""
	actors := `
  actor_a: {headers: {Lab-Caller: alice@acme}, attributes: {tenant: acme}}
  actor_b: {headers: {Lab-Caller: bob@acme}, attributes: {tenant: acme}}
  tenant_b: {headers: {Lab-Caller: carol@globex}, attributes: {tenant: globex}}`
	switch way {
	case "page":
		url = "/page/" + o.Name
	case "graphql":
		url, pointer, within = "/graphql", "/data/"+o.Name+"/id", "/variables"
		content = fmt.Sprintf("graphql: {operation: %s, query: 'mutation %[1]s($in: Input!) { %[1]s(in: $in) { id } }', variables: %s}", o.Name, body)
	case "webhook":
		url, key, actors = "/hooks/"+o.Name, `{header: webhook-id, value: "evt_{{hex 16}}"}`, " {}"
		contract = "{profile: custom, mismatch: [422], in_flight: [409, 503], replay: original}"
		signature = fmt.Sprintf("\n    signature: {scheme: standard-webhooks, secret: '{{env %q}}'}", EnvSecret)
		more = "headers: {Lab-Caller: provider@acme}, "
	case "job":
		url = "/jobs/" + o.Name
	}
	return fmt.Appendf(nil, `version: 1
name: lab-%[1]s
target: {allow: [%[2]q], production: false}
variables: {reference: "probe-{{.run}}-{{hex 8}}"}
principals:%[7]s
operations:
  - name: %[1]s
    request:
      method: POST
      url: http://%[2]s%[3]s
      body: {%[6]s}
    key: %[8]s%[9]s
    altered: {edits: [%[4]s]}
    readers:
      - name: effects
        http: {%[11]surl: "http://%[2]s/v1/%[1]s?reference={{.reference}}", value: /count}
      - name: mails
        http: {url: "http://%[2]s/lab/mails?operation=%[1]s&reference={{.reference}}", value: /count}
        outside: true
      - name: webhooks
        http: {url: "http://%[2]s/lab/hooks?operation=%[1]s&reference={{.reference}}", value: /count}
        outside: true
    resource: {pointer: %[10]s}
    contract: %[5]s
timing: {timeout: 30s, poll: 20ms, settle: 60ms, stable_for: 2, settle_limit: 5s}
race: {width: 5, trials: 3}
budget: {max_sends: 300, max_reads: 8000, max_time: 5m}
`, o.Name, addr, url, o.altered(within), contract, content, actors, key, signature, pointer, more)
}

// altered is what makes a request another one, whose body is within another.
func (o *Operation) altered(within string) string {
	switch o.Name {
	case "charges":
		return "{pointer: " + within + "/amount, value: 900}"
	case "orders":
		return "{pointer: " + within + "/quantity, value: 7}"
	case "roles":
		return "{pointer: " + within + "/role, value: owner}"
	}
	return "{pointer: " + within + `/reference, value: "{{.reference}}-other"}`
}
