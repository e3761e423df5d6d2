package lab

import (
	"fmt"
	"strings"
)

// Plan returns what the probe needs to know of an operation of a lab at addr, host
// and port, whose switches are s: a plan that runs as it is.
func Plan(addr string, o *Operation, s Switches) []byte {
	missing := "[400]"
	if s.Key != KeyRequired {
		missing = "[]" // the service promises nothing to whoever sends none
	}
	return fmt.Appendf(nil, `version: 1
name: lab-%[1]s
target: {allow: [%[2]q], production: false}
variables: {reference: "probe-{{.run}}-{{hex 8}}"}
principals:
  actor_a: {headers: {Lab-Caller: alice@acme}, attributes: {tenant: acme}}
  actor_b: {headers: {Lab-Caller: bob@acme}, attributes: {tenant: acme}}
  tenant_b: {headers: {Lab-Caller: carol@globex}, attributes: {tenant: globex}}
operations:
  - name: %[1]s
    request:
      method: POST
      url: http://%[2]s/v1/%[1]s
      body: {json: %[3]s}
    key: {header: Idempotency-Key}
    altered: {edits: [%[4]s]}
    readers:
      - name: effects
        http: {url: "http://%[2]s/v1/%[1]s?reference={{.reference}}", value: /count}
      - name: mails
        http: {url: "http://%[2]s/lab/mails?operation=%[1]s&reference={{.reference}}", value: /count}
        outside: true
    resource: {pointer: /id}
    contract: {profile: ietf, replay_header: Idempotency-Replayed, missing: %[5]s}
timing: {timeout: 30s, poll: 20ms, settle: 60ms, stable_for: 2, settle_limit: 5s}
race: {width: 5, trials: 3}
budget: {max_sends: 300, max_reads: 5000, max_time: 5m}
`, o.Name, addr, strings.ReplaceAll(o.Example, "REF", "{{.reference}}"), o.altered(), missing)
}

// altered is what makes a request another one.
func (o *Operation) altered() string {
	switch o.Name {
	case "charges":
		return "{pointer: /amount, value: 900}"
	case "orders":
		return "{pointer: /quantity, value: 7}"
	case "roles":
		return "{pointer: /role, value: owner}"
	}
	return `{pointer: /reference, value: "{{.reference}}-other"}`
}
