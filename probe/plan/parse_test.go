package plan

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// minimal is a plan to which a test adds its mistakes.
const minimal = `version: 1
name: p
target: {production: false}
operations:
  - name: o
    request: {method: POST, url: "http://127.0.0.1:1/"}
`

func messages(err error) []string {
	var list []string
	for _, p := range Problems(err) {
		list = append(list, p.Error())
	}
	return list
}

// TestProblems: each mistake is found, with its place. Those of the form are
// compared with the schema elsewhere.
func TestProblems(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"unknown key", minimal + "    requst: {}\n", []string{"p.yaml:7:5: operations[0].requst: is not known here; did you mean request?"}},
		{"two mistakes, two lines", minimal + "    readers: 5\nrase: {}\n", []string{
			"p.yaml:7:14: operations[0].readers: must be a list",
			"p.yaml:8:1: rase: is not known here; did you mean race?",
		}},
		{"missing", "version: 1\nname: p\ntarget: {}\noperations: []\n", []string{
			"p.yaml:3:9: target.production: is missing", "p.yaml:4:13: operations: is empty",
		}},
		{"given twice", minimal + "name: q\n", []string{"p.yaml:7:1: name: is given twice"}},
		{"alias", minimal + "experiments: [&a race, *a]\n", []string{"experiments[0]: anchors are not supported", "experiments[1]: aliases are not supported: write it out"}},
		{"merge", minimal + "race: {<<: {width: 3}}\n", []string{"p.yaml:7:8: race.<<: a name must be a string; put it in quotes"}},
		{"tag", minimal + "race: !!map {width: 3}\n", []string{"race: tags are not supported"}},
		{"not YAML", "version: [\n", []string{"this is not YAML"}},
		{"second document", minimal + "---\nversion: 1\n", []string{"p.yaml:7:1: there is a second document"}},
		{"empty", "# nothing\n", []string{"the plan is empty"}},
		{"not UTF-8", "name: \xff\n", []string{"the plan is not UTF-8"}},
		{"too large", strings.Repeat("#", MaxBytes+1), []string{"the plan is larger than 1024 KiB"}},
		{"too deep", strings.Repeat("[", 5000), []string{"the plan is nested too deep"}},
		{"json too deep", minimal + "    altered: {body: {json: " + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}}\n", []string{"is nested more than 64 levels deep"}},
		{"json number", minimal + "    altered: {body: {json: {a: 0x10}}}\n", []string{"altered.body.json.a: is not a JSON number"}},

		{"unknown function", minimal + "variables: {a: '{{uiud}}'}\n", []string{"p.yaml:7:16: variables.a: {{uiud}} is not known; did you mean uuid?"}},
		{"unknown variable", minimal + "variables: {ab: '{{hex 4}}', b: '{{.ac}}'}\n", []string{"variables.b: {{.ac}} is not a variable that is known here; did you mean ab?"}},
		{"variable of later", minimal + "variables: {a: '{{.b}}', b: x}\n", []string{"variables.a: {{.b}} is not a variable"}},
		{"reserved variable", minimal + "variables: {run: x}\n", []string{"variables.run: is a name that the probe itself uses"}},
		{"variable twice", minimal + "    variables: {a: x}\nvariables: {a: x}\n", []string{"operations[0].variables.a: another variable has this name"}},
		{"no end", minimal + "variables: {a: '{{hex 4'}\n", []string{"variables.a: a {{ has no }}"}},
		{"too many digits", minimal + "variables: {a: '{{hex 5000}}'}\n", []string{"variables.a: {{hex}} needs a number from 1 to 1000"}},
		{"unknown filter", minimal + "variables: {a: '{{uuid | rot13}}'}\n", []string{"the filter rot13 is not known"}},
		{"fresh in a reader", minimal + "    readers: [{name: r, log: {file: f, pattern: '{{uuid}}'}}]\n", []string{"operations[0].readers[0].log.pattern: {{uuid}} would be another value each time"}},
		{"fresh in a principal", minimal + "principals: {actor_a: {headers: {X-Id: '{{uuid}}'}}}\n", []string{"principals.actor_a.headers.X-Id: {{uuid}} would be another value each time"}},
		{"key in the request", minimal + "    altered: {body: {text: '{{.key}}'}}\n", []string{"{{.key}} is not known here"}},
		{"attribute that is not there", minimal + "    altered: {body: {text: '{{.principal.x}}'}}\n", []string{"the principals have no attribute x"}},
		{"attributes differ", minimal + "principals: {actor_a: {}, tenant_b: {attributes: {a: x}}}\n", []string{"principals.tenant_b: must have the same attributes as actor_a"}},
		{"nobody to differ from", minimal + "principals: {tenant_b: {}}\n", []string{"principals: needs actor_a"}},
		{"pattern", minimal + "    readers: [{name: r, log: {file: f, pattern: '(secret'}}]\n", []string{"log.pattern: is not a regular expression (RE2)"}},
		{"step twice", minimal + "    steps: [{name: a, each: request, request: {method: GET, url: 'http://x/'}}]\nsteps: [{name: a, each: principal, request: {method: GET, url: 'http://x/'}}]\n", []string{"p.yaml:7:20: operations[0].steps[0].name: another step has this name"}},
		{"taken twice", minimal + "variables: {a: x}\nsteps: [{name: s, each: request, request: {method: GET, url: 'http://x/'}, take: [{name: a, pointer: /a}, {name: run, header: X}]}]\n", []string{"steps[0].take[0].name: another variable, or what another step takes, has this name", "steps[0].take[1].name: is a name that the probe itself uses"}},
		{"taken from two places", minimal + "steps: [{name: s, each: request, request: {method: GET, url: 'http://x/'}, take: [{name: a, pointer: /a, header: X}, {name: b, pattern: x}]}]\n", []string{"take[0]: has more than one of header, pointer and cookie", "take[1].pattern: must be a regular expression (RE2) with a group"}},
		{"taken later", minimal + "steps: [{name: s, each: principal, request: {method: GET, url: 'http://x/{{.b}}'}}, {name: t, each: principal, request: {method: GET, url: 'http://x/'}, take: [{name: b, pointer: /b}]}]\n", []string{"steps[0].request.url: {{.b}} is not a variable that is known here"}},
		{"of a request, in a principal", minimal + "principals: {actor_a: {headers: {X-A: '{{.a}}'}}}\nsteps: [{name: s, each: request, request: {method: GET, url: 'http://x/'}, take: [{name: a, pointer: /a}]}]\n", []string{"principals.actor_a.headers.X-A: {{.a}} is not a variable that is known here"}},
		{"fresh in a step of a principal", minimal + "steps: [{name: s, each: principal, request: {method: GET, url: 'http://x/{{uuid}}'}}]\n", []string{"steps[0].request.url: {{uuid}} would be another value each time"}},
		{"credential in a step", minimal + "steps: [{name: s, each: principal, request: {method: GET, url: 'http://x/?token=abc'}}]\n", []string{"steps[0].request.url: the parameter token would put a credential"}},
		{"expires with the request", minimal + "steps: [{name: s, each: request, request: {method: GET, url: 'http://x/'}, take: [{name: a, pointer: /a}], valid: 5m}]\n", []string{"steps[0]: has valid, expires_in, expired or refresh, which are for each: principal"}},
		{"a word of two meanings", minimal + "    poll: {pending: [Given up], failed: [given-up]}\n", []string{`operations[0].poll.failed[0]: "given-up" is among pending too`}},
		{"taken for nothing", minimal + "    poll: {take: [{name: a, pointer: /a}]}\n", []string{"operations[0].poll.take: is for url, which is not there"}},
		{"asked for too long", minimal + "    poll: {limit: 25h}\n", []string{"operations[0].poll.limit: is longer than 24h0m0s"}},
		{"asked too seldom", minimal + "    poll: {limit: 1s, interval: 2s}\n", []string{"operations[0].poll.interval: is longer than limit, 1s"}},
		{"polls with a token", minimal + "    poll: {url: 'http://x/?token=abcdef'}\n", []string{"operations[0].poll.url: the parameter token would put a credential into the plan"}},
		{"polls for an unknown", minimal + "    poll: {url: 'http://x/{{.job}}'}\n", []string{"operations[0].poll.url: {{.job}} is not a variable that is known here"}},
		{"refresh of what lasts", minimal + "steps: [{name: s, each: principal, request: {method: GET, url: 'http://x/'}, take: [{name: a, pointer: /a}], refresh: {method: GET, url: 'http://x/{{.a}}'}}]\n", []string{"steps[0].refresh: is never sent without valid, expires_in or expired"}},
		{"nothing to expire", minimal + "steps: [{name: s, each: principal, request: {method: GET, url: 'http://x/'}, valid: 200h}]\n", []string{"steps[0]: takes nothing that could expire", "steps[0].valid: is longer than 168h"}},
		{"pages of a value", minimal + "    readers: [{name: r, http: {url: 'http://x/', value: /n, pages: {next: /next}}}]\n", []string{"http.pages: are for count and lines"}},
		{"member without a body", minimal + "    readers: [{name: r, http: {url: 'http://x/', count: /n, pages: {next: /next, member: /a, parameter: a}}}]\n", []string{"http.pages: has parameter and member", "pages.member: needs a post of JSON to go into"}},
		{"parameter without next", minimal + "    readers: [{name: r, http: {url: 'http://x/', count: /n, pages: {number: p, parameter: a}}}]\n", []string{"http.pages: has parameter or member, which say where next goes"}},
		{"number without a group", minimal + "    readers: [{name: r, http: {url: 'http://x/', number: '[0-9]+', format: xml, id: /a}}]\n", []string{"http.number: must have a group", "http.format: is for count and value", "http: where and id are about what count counts"}},
		{"GraphQL", minimal + "    altered: {body: {graphql: {operation: o, query: '{ a }', variables: [1]}}}\n", []string{"altered.body.graphql.variables: must be a mapping"}},
		{"edit of GraphQL", strings.Replace(minimal, "url:", "body: {graphql: {operation: o, query: '{ a }', variables: {a: 1}}}, url:", 1) + "    altered: {edits: [{pointer: /variables/b, value: 1}]}\n", []string{"edits[0].pointer: there is no such value"}},
		{"what experiments lack", minimal + "    experiments: [preview, corrected, same_meaning, other_instance, other_operation, race_altered, retention_search]\n", []string{
			"experiments[0]: the plan says nothing under preview", "experiments[1]: the plan says nothing under key", "experiments[2]: the request has no json or graphql body",
			"experiments[3]: the plan says nothing under target.instance", "experiments[4]: the plan says nothing under other_operation", "experiments[5]: the plan says nothing under key",
			"experiments[6]: the plan says nothing under target.retention_search",
		}},
		{"too long a search", strings.Replace(minimal, "{prod", "{retention_search: 5m, instance: 'x:0', prod", 1) + "    experiments: [retention_search]\n    other_operation: o\n", []string{"target.retention_search is not shorter than budget.max_time", "target.instance: must have a port", "other_operation: is this operation itself"}},
		{"other operation", minimal + "    other_operation: p\n", []string{"p.yaml:7:22: operations[0].other_operation: the plan has no such operation"}},
		{"preview", minimal + "    key: {header: K}\n    preview: {method: CONNECT, url: 'http://x/?api_key=abc', headers: {k: x}}\n", []string{"preview.method: CONNECT asks for a tunnel", "preview.url: the parameter api_key would put a credential", "preview.headers: has the key's header"}},
		{"invalid", strings.Replace(minimal, "url:", "body: {json: {a: 1}}, url:", 1) + "    invalid: {edits: [{pointer: /b, value: 1}]}\n    atomicity: [{is: db_unique, answer: '('}, {is: tx_lock, sql: {driver: postgres, dsn: 'postgres://u:p@h/d', query: q}}]\n", []string{"invalid.edits[0].pointer: there is no such value", "atomicity[0].answer: is not a regular expression", "atomicity[1].sql.dsn: would put a credential"}},
		{"to fill in", minimal + "    readers: [{name: r, log: {file: f, pattern: '{{fill \"say what\"}}'}}]\n", []string{"p.yaml:7:49: operations[0].readers[0].log.pattern: to fill in: say what"}},

		{"credential", minimal + "principals: {actor_a: {headers: {Authorization: Bearer abc}}}\n", []string{"principals.actor_a.headers.Authorization: would put a credential into the plan"}},
		{"credential in a cookie", minimal + "principals: {actor_a: {cookies: {sid: abc}}}\n", []string{"cookies.sid: would put a credential"}},
		{"credential by way of a variable", minimal + "variables: {v: abc}\n    \n" + "reset: {http: {request: {method: POST, url: 'http://x/', headers: {X-Api-Key: abc}}}}\n", []string{"reset.http.request.headers.X-Api-Key: would put a credential"}},
		{"credential in a URL", strings.Replace(minimal, "1:1/", "1:1/?a=b&api_key=abc", 1), []string{"the parameter api_key would put a credential"}},
		{"user in a URL", strings.Replace(minimal, "127", "u:p@127", 1), []string{"it contains a user; put credentials in a header"}},
		{"dsn", minimal + "    readers: [{name: r, sql: {driver: postgres, dsn: 'postgres://u:p@h/d', query: q}}]\n", []string{"sql.dsn: would put a credential"}},
		{"secret of a signature", minimal + "    key: {body: /id}\n    signature: {scheme: stripe, secret: abc}\n", []string{"operations[0].key.body: the request has no body", "signature.secret: would put a credential"}},

		{"scheme", strings.Replace(minimal, "http:", "ftp:", 1), []string{"operations[0].request.url: must begin with http:// or https://"}},
		{"framing", strings.Replace(minimal, "url:", "headers: {Content-Length: '3'}, url:", 1), []string{"headers.Content-Length: is written by the probe"}},
		{"key written twice", strings.Replace(minimal, "url:", "headers: {idempotency-key: x}, url:", 1) + "    key: {header: Idempotency-Key}\n", []string{"operations[0].request.headers: has the key's header; the probe writes it"}},
		{"key parameter twice", strings.Replace(minimal, "1:1/", "1:1/?k=1", 1) + "    key: {query: k}\n", []string{"operations[0].request.url: has the key's parameter"}},
		{"key member twice", minimal + "    key: {body: /k}\n    altered: {body: {json: {k: 1}}}\n", []string{"the request has no body", "the body already has /k"}},
		{"oasis", minimal + "    key: {header: Idempotency-Key}\ncontract: {profile: oasis}\n", []string{"has its key in the header Repeatability-Request-ID", "needs Repeatability-First-Sent"}},
		{"edit of nothing", strings.Replace(minimal, "url:", "body: {json: {a: 1}}, url:", 1) + "    altered: {edits: [{pointer: /b, value: 1}, {pointer: /a, value: 1}]}\n", []string{"edits[0].pointer: there is no such value", "edits[1].value: is what the body has already"}},
		{"signature without an id", minimal + "    signature: {scheme: github, secret: '{{env \"X\"}}'}\n", []string{"operations[0].key: is missing"}},
		{"signature's own header", minimal + "    key: {header: webhook-ID}\n    signature: {scheme: standard-webhooks, secret: '{{env \"X\"}}'}\nprincipals: {actor_a: {headers: {Webhook-Timestamp: '1'}}}\n", []string{"principals.actor_a.headers: has webhook-timestamp, which the signature writes"}},
		{"effect", minimal + "    readers: [{name: r, effect: 0.0, log: {file: f, pattern: x}}]\n", []string{"readers[0].effect: must be a number other than 0"}},
		{"reader twice", minimal + "    readers: [{name: r, log: {file: f, pattern: x}}, {name: r, log: {file: f, pattern: x}}]\n", []string{"readers[1].name: another reader has this name"}},
		{"sinks collide", minimal + "    readers: [{name: r, smtp: {listen: '127.0.0.1:25'}}, {name: s, webhook: {listen: '127.0.0.1:25'}}]\n", []string{"readers[1].webhook.listen: another reader listens here"}},
		{"no such principal", minimal + "    readers: [{name: r, http: {url: 'http://x/', count: '', as: actor_b}}]\n", []string{"http.as: the plan has no such principal"}},
		{"group", minimal + "    resource: {pattern: abc}\n", []string{"resource.pattern: must be a regular expression (RE2) with a group"}},
		{"audit of nobody", minimal + "    audit: [{name: a, log: f, find: {actor: x}}]\n", []string{"audit[0].find: needs key, request_id"}},
		{"operation twice", minimal + "  - name: o\n    request: {method: POST, url: 'http://x/'}\n", []string{"operations[1].name: another operation has this name"}},

		{"address", strings.Replace(minimal, "{prod", "{allow: ['*:80', 'h:0', '10.0.0.0/8:1', 'x:70000', 'ok:80'], prod", 1), []string{
			"target.allow[0]: must be one host's name", "target.allow[1]: must have a port", "target.allow[2]: must be host:port", "target.allow[3]: must have a port",
		}},
		{"production", strings.Replace(minimal, "false", "true", 1) + "experiments: [duplicate, race]\nreset: {command: [x]}\n", []string{"experiments[1]: is refused in production", "reset: is refused in production"}},
		{"experiment lacks", minimal + "    experiments: [altered, other_tenant, redelivery, retention_edge]\n", []string{
			"experiments[0]: the plan says nothing under altered", "experiments[1]: the plan says nothing under principals.tenant_b", "experiments[2]: the plan says nothing under signature", "experiments[3]: the plan says nothing under target.retention",
		}},
		{"experiment twice", minimal + "experiments: [race, race]\n", []string{"experiments[1]: is given twice"}},
		{"no time", minimal + "timing: {poll: 0s}\n", []string{"p.yaml:7:16: timing.poll: must be longer than 0"}},
		{"timing", minimal + "timing: {settle: 2m, poll: 3m}\n", []string{"timing.settle: is longer than settle_limit", "timing.poll: is longer than settle"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("p.yaml", []byte(tt.text))
			got := messages(err)
			if len(got) != len(tt.want) {
				t.Fatalf("got %d problems:\n%s\nwant %q", len(got), strings.Join(got, "\n"), tt.want)
			}
			for i, want := range tt.want {
				// In the order of their lines, which need not be that of the test.
				if !strings.Contains(strings.Join(got, "\n"), want) {
					t.Errorf("%d: got %q, want %q", i, got, want)
				}
			}
			if strings.Contains(strings.Join(got, "\n"), "abc") {
				t.Errorf("a value is quoted: %q", got)
			}
		})
	}
}

// TestValidate: a plan made in Go is held to the same rules.
func TestValidate(t *testing.T) {
	good := func() *Plan {
		return &Plan{
			Version: 1, Name: "p", Target: Target{Production: new(false)},
			Operations: []Operation{{Name: "o", Request: Request{Method: "POST", URL: "http://x/"}}},
		}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"version", func(p *Plan) { p.Version = 2 }, "version: is 2; at most 1 is allowed"},
		{"missing", func(p *Plan) { p.Target.Production = nil }, "target.production: is missing"},
		{"method", func(p *Plan) { p.Operations[0].Request.Method = "post" }, "operations[0].request.method: must be a method in capitals"},
		{"enum", func(p *Plan) { p.Experiments = []Experiment{"rase"} }, "experiments[0]: must be one of specification"},
		{"negative", func(p *Plan) { p.Timing.Poll = -1 }, "timing.poll: must be longer than 0"},
		{"neither", func(p *Plan) { p.Operations[0].Request.Body = &Body{} }, "operations[0].request.body: needs one of text, json, graphql, base64, file"},
		{"both", func(p *Plan) { p.Operations[0].Key = &Key{Header: "A", Query: "b"} }, "operations[0].key: has header and query"},
		{"names", func(p *Plan) { p.Variables = Pairs{{"A", ""}} }, "variables.A: the name must be a name in lower case"},
		{"JSON", func(p *Plan) { p.Operations[0].Request.Body = &Body{JSON: JSON(`{"a":1,"a":2}`)} }, "is not JSON, or has a member twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := good()
			tt.change(p)
			got := strings.Join(messages(p.Validate()), "\n")
			if strings.Count(got, "\n") > 0 || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q alone", got, tt.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	p, err := Parse("p.yaml", []byte(minimal+"    key: {header: idempotency-key}\n"))
	if err != nil {
		t.Fatal(err)
	}
	op := &p.Operations[0]
	if op.Key.Syntax != "sf-string" || op.Key.Value != "{{uuid}}" || p.Budget.MaxSends != 50 || p.Race.Width != 10 || p.Race.Trials != 1 {
		t.Errorf("defaults are not those documented: %+v %+v", op.Key, p)
	}
	if got := p.ExperimentsFor(op); !reflect.DeepEqual(got, []Experiment{Specification, Duplicate}) {
		t.Errorf("by default, %v are run", got)
	}
	again := p.WithDefaults()
	if !reflect.DeepEqual(&again, p) {
		t.Error("defaults of a plan with defaults are others")
	}
	p.Operations[0].Key = &Key{Header: "Idempotency-Key"}
	p.Contract = &Contract{Profile: "stripe"}
	if d := p.WithDefaults(); d.Operations[0].Key.Syntax != "bare" || p.Operations[0].Key.Syntax != "" {
		t.Error("with the contract stripe, the key is bare; and WithDefaults changes nothing")
	}
}

func TestContract(t *testing.T) {
	p, err := Parse("p.yaml", []byte(minimal+"    contract: {profile: stripe, mismatch: [409], missing: []}\ncontract: {profile: oasis}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := p.ContractFor(&p.Operations[0])
	if !reflect.DeepEqual(c.Mismatch, []int{409}) || len(c.Missing) != 0 || c.ReplayHeader != "Idempotent-Replayed" || !*c.RecordsErrors || *c.InFlightWaits {
		t.Errorf("got %+v", c)
	}
	c.InFlight[0] = 1
	if p.ContractFor(&p.Operations[0]).InFlight[0] != 409 {
		t.Error("a caller can change the profile")
	}
	if c := p.ContractFor(new(Operation)); c.Profile != "oasis" || c.RecordsErrors != nil {
		t.Errorf("an operation without a contract has %+v", c)
	}
}

func TestParseFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(name, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ParseFile(name)
	if err != nil || p.Dir() != filepath.Dir(name) {
		t.Errorf("got %v, dir %q", err, p.Dir())
	}
	if _, err := ParseFile(name + "x"); !os.IsNotExist(unwrap(err)) {
		t.Errorf("got %v for a file that is not there", err)
	}
}

func unwrap(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if _, isPath := err.(*os.PathError); isPath {
			return err
		}
		err = u.Unwrap()
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"orders.yaml", "full.yaml"} {
		f.Add(example(f, name))
	}
	f.Add([]byte(minimal + "experiments: [&a race, *a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("p.yaml", data)
		if err == nil && p.Validate() != nil {
			t.Errorf("what was parsed is not valid: %v", p.Validate())
		}
		if err != nil && len(Problems(err)) == 0 {
			t.Errorf("an error without problems: %v", err)
		}
	})
}
