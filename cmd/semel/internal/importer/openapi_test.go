package importer

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/plan"
)

const openapiFile = `openapi: 3.1.0
info: {title: shop, version: "1"}
servers:
  - url: https://{region}.shop.example/v1/
    variables: {region: {default: eu}}
security: [{token: []}]
paths:
  /shops/{shop}/orders:
    parameters:
      - {name: shop, in: path, required: true, schema: {type: string}}
      - {name: trace, in: query, schema: {type: string, default: on}}
    post:
      operationId: createOrder
      parameters:
        - {name: Idempotency-Key, in: header, schema: {type: string}}
        - {name: X-Version, in: header, required: true, example: "2"}
        - {name: optional, in: query, schema: {type: string}}
      requestBody:
        content:
          text/plain: {}
          application/json:
            schema: {$ref: '#/components/schemas/Order'}
      responses: {"201": {description: ok}}
  /form:
    post:
      requestBody:
        content:
          application/x-www-form-urlencoded:
            example: {a: "x y", n: 1.50}
      responses: {"201": {description: ok}}
components:
  securitySchemes:
    token: {type: http, scheme: bearer}
  schemas:
    Base: {type: object, required: [id], properties: {id: {type: string, format: uuid}, at: {type: string, readOnly: true}}}
    Order:
      allOf:
        - {$ref: '#/components/schemas/Base'}
        - type: object
          required: [lines, total, password, parent, code]
          properties:
            lines: {type: array, minItems: 2, items: {type: object, properties: {sku: {type: string, example: A-1}, quantity: {type: integer, minimum: 3}}}}
            total: {type: number, exclusiveMinimum: 10, maximum: 100}
            note: {type: string}
            colour: {type: string, enum: [red, green]}
            password: {type: string, example: hunter2!}
            code: {type: string, pattern: '^[A-Z]"}}$'}
            parent: {oneOf: [{type: string, maxLength: 3}, {type: integer}]}
            self: {$ref: '#/components/schemas/Order'}
`

func TestOpenAPI(t *testing.T) {
	for _, op := range []string{"createOrder", "POST /shops/{shop}/orders"} {
		d, err := OpenAPI([]byte(openapiFile), APIChoice{Operation: op, Document: "openapi.yaml"})
		if err != nil {
			t.Fatal(err)
		}
		text := string(d.YAML)
		for _, want := range []string{
			`https://eu.shop.example/v1/shops/{{fill "the parameter shop"}}/orders`, "name: createOrder", "specification: openapi.yaml",
			`Authorization: 'Bearer {{env "PROBE_TOKEN"}}'`, "X-Version: \"2\"", "key: {header: Idempotency-Key}", `# allow: ["eu.shop.example:443"]`,
			`"id": "{{uuid}}"`, `"sku": "A-1"`, `"quantity": 3`, `"total": 11`, `"parent": "pro"`,
			`"password": "{{env \"PROBE_BODY_PASSWORD\"}}"`, `matches ^[A-Z]`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if strings.Contains(text, "trace=on") || strings.Contains(text, `"colour"`) || strings.Contains(text, `"note"`) || strings.Contains(text, `"at"`) || strings.Count(text, "A-1") != 2 {
			t.Errorf("what is optional or read-only is there, or a line is missing:\n%s", text)
		}
		withoutSecrets(t, d, "hunter2!")
		if _, err := plan.Parse("x", d.YAML); !plan.OnlyToFill(err) {
			t.Error(err)
		}
	}
	asked, err := OpenAPI([]byte(openapiFile), APIChoice{Operation: "createOrder", Optional: true})
	if err != nil || !strings.Contains(string(asked.YAML), "trace=on") || !strings.Contains(string(asked.YAML), `"colour": "red"`) {
		t.Errorf("what is optional was asked for: %v\n%s", err, asked.YAML)
	}
	d, err := OpenAPI([]byte(openapiFile), APIChoice{Operation: "post /form", Server: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	got := sent(t, d, map[string]string{"PROBE_TOKEN": "tok-998877"})
	if want := "POST http://127.0.0.1:1/form\nContent-Type: application/x-www-form-urlencoded\nAuthorization: Bearer tok-998877\n\na=x%20y&n=1.50"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for op, want := range map[string]string{"nothing": "begins with POST /shops/{shop}/orders", "": "no operation"} {
		if _, err := OpenAPI([]byte(openapiFile), APIChoice{Operation: op}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", op, err, want)
		}
	}
	for _, text := range []string{"", "swagger: '2.0'\ninfo: {}\n", "[", "openapi: 3.1.0\n"} {
		if _, err := OpenAPI([]byte(text), APIChoice{Operation: "x"}); err == nil {
			t.Errorf("%q is an OpenAPI document", text)
		}
	}
}

// A GET beside the operation is read as far as the document describes it: without
// a success, or with a list of what has no members.
func TestOpenAPIBesideTheOperation(t *testing.T) {
	for _, responses := range []string{"{}", "{default: {description: x}}", "{'200': {description: x}}", "{'204': {description: x, content: {}}}", "{'404': {description: x}}", "{'200': {content: {application/json: {schema: {type: array, items: {anyOf: [{type: string}]}}}}}}"} {
		d, err := OpenAPI([]byte("openapi: 3.0.0\nservers: [{url: 'https://a.example'}]\npaths:\n  /orders:\n    get: {responses: "+responses+"}\n    post: {responses: {}}\n"), APIChoice{Operation: "post /orders"})
		checkDraft(t, d, err)
		if err != nil {
			t.Errorf("%s: %v", responses, err)
		}
	}
}

// What a document calls a dry run of the operation is in the draft, and tried
// before anything that has effects.
func TestOpenAPIPreview(t *testing.T) {
	const head = `openapi: 3.1.0
servers: [{url: "https://shop.example/v1"}]
paths:
  /orders:
    post:
      operationId: create
`
	json := func(schema string) string {
		return "      requestBody: {content: {application/json: {schema: " + schema + "}}}\n"
	}
	const order = "{type: object, required: [item], properties: {item: {type: string}, validateOnly: {type: boolean}}}"
	for name, c := range map[string]struct{ doc, want string }{
		"a parameter":         {"      parameters: [{name: dry_run, in: query, schema: {type: boolean}}]\n", "POST https://shop.example/v1/orders?dry_run=true\n"},
		"beside another":      {"      parameters: [{name: dryRun, in: query, schema: {type: string, enum: [None, All]}}, {name: n, in: query, required: true, schema: {type: integer, example: 1}}]\n", "POST https://shop.example/v1/orders?n=1&dryRun=All\n"},
		"a header":            {"      parameters: [{name: X-Validate-Only, in: header, schema: {type: string}}]\n", "POST https://shop.example/v1/orders\nX-Validate-Only: true\n"},
		"a member":            {json(order), `{"validateOnly":true,"item":"probe"}`},
		"a member of a form":  {"      requestBody: {content: {application/x-www-form-urlencoded: {schema: " + order + "}}}\n", "item=probe&validateOnly=true"},
		"a member that is no": {"      requestBody: {content: {application/json: {schema: " + order + ", example: {item: x, validateOnly: false}}}}\n", `{"validateOnly":true,"item":"x"}`},
		"a required member":   {json("{type: object, required: [item, dryRun], properties: {item: {type: string}, dryRun: {type: boolean}}}"), `{"item":"probe","dryRun":true}`},
		"a path below":        {json("{type: object}") + "  /orders/validate: {post: {operationId: check}}\n", "POST https://shop.example/v1/orders/validate\n"},
		"a verb":              {json("{type: object}") + "  /orders:simulate: {post: {}}\n", "POST https://shop.example/v1/orders:simulate\n"},
		"another method":      {json("{type: object}") + "  /orders/validate: {get: {}}\n", ""},
		"of something else":   {json("{type: object}") + "  /refunds/validate: {post: {}}\n", ""},
		"a text":              {"      parameters: [{name: preview, in: query, schema: {type: object}}]\n" + json("{type: object, properties: {simulate: {type: string}}}"), ""},
		"nothing":             {json("{type: object}"), ""},
	} {
		d, err := OpenAPI([]byte(head+c.doc), APIChoice{Operation: "create"})
		if err != nil {
			t.Fatal(name, err)
		}
		text := string(d.YAML)
		if has := strings.Contains(text, "\nexperiments: [preview, duplicate]\n"); has != (c.want != "") || has != strings.Contains(text, "    preview:\n") {
			t.Errorf("%s: the preview is tried: %v\n%s", name, has, text)
		}
		if c.want == "" {
			continue
		}
		p, err := plan.Parse("x", d.YAML)
		if !plan.OnlyToFill(err) {
			t.Fatal(name, err)
		}
		p.Operations[0].Readers = nil
		r, err := plan.NewRenderer(p, plan.Source{})
		if err != nil {
			t.Fatal(name, err)
		}
		v, err := r.Draw("create")
		if err != nil {
			t.Fatal(name, err)
		}
		for preview, want := range map[bool]bool{true: true, false: false} {
			q, err := r.Request(v, plan.Change{Preview: preview, NoKey: true})
			if err != nil {
				t.Fatal(name, err)
			}
			if got := render(q.Method, q.URL, q.Header, q.Body); strings.Contains(got, c.want) != want {
				t.Errorf("%s, preview %v: %s", name, preview, got)
			}
		}
	}
}

// What a document refers to elsewhere never reaches the library, which would follow
// it in goroutines where a panic cannot be caught. These documents ended the
// program once.
func TestOpenAPIReferencesOutside(t *testing.T) {
	const document = `openapi: 3.1.0
info: {title: x, version: "1"}
servers: [{url: https://h}]
paths:
  /a:
    post:
      operationId: make
      parameters: [{$ref: 'other.yaml#/p'}, {$ref: '#/components/parameters/P'}, {$ref: '#/nowhere'}]
      requestBody:
        content:
          application/json:
            schema: {type: object, required: [id, s], properties: {id: {type: string, example: E-1}, s: {$ref: 'https://example.com/s.json'}}}
            examples: {x: {$ref: './examples/x.json'}}
      callbacks: {c: {$ref: 'cb.yaml'}}
      responses:
        "200": {description: x, headers: {X: {$ref: 'h.yaml#/X'}}, links: {l: {$ref: 'l.yaml'}, m: {operationRef: 'o.yaml#/x'}}, content: {application/json: {schema: {$ref: 's.yaml'}, examples: {e: {externalValue: 'http://x/'}}}}}
  /b: {$ref: 'b.yaml'}
webhooks: {w: {$ref: 'w.yaml'}}
components:
  parameters: {P: {name: p, in: query, required: true, schema: {$ref: 'x.yaml'}}}
  schemas: {Loop: {$ref: '#/components/schemas/Loop'}, Bad: {$ref: 'nope.yaml'}}
  examples: {E: {$ref: 'e.json'}}
  headers: {H: {$ref: 'h.json'}}
  links: {L: {$ref: 'l.json'}}
`
	d, err := OpenAPI([]byte(document), APIChoice{Operation: "make"})
	if err != nil {
		t.Fatal(err)
	}
	checkDraft(t, d, nil)
	if text := string(d.YAML); !strings.Contains(text, "References that lead out of the document") || !strings.Contains(text, "?p=") {
		t.Errorf("%s", text)
	}
}

// Whatever the names in a document, its draft parses.
func TestOpenAPINames(t *testing.T) {
	for _, c := range []struct{ path, id string }{
		{"/a/{{x}/b", "123"},
		{"/a/{x}{y}", "true"},
		{"/a/{{x}}", "1e3"},
		{"/{", "null"},
		{"/a}/{x", "~"},
		{"/{x y}", "-"},
		{"/a/{x}", "0x1f"},
		{"/'\"/{x}", "2020-01-01"},
		{"/{{fill}}", ".inf"},
	} {
		doc := map[string]any{
			"openapi": "3.0.0", "info": map[string]any{"title": "x", "version": "1"}, "servers": []any{map[string]any{"url": "https://h"}},
			"paths": map[string]any{c.path: map[string]any{"post": map[string]any{"operationId": c.id, "responses": map[string]any{}, "parameters": []any{map[string]any{"name": "x", "in": "path", "required": true}}}}},
		}
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenAPI(text, APIChoice{Operation: c.id})
		if err != nil {
			t.Errorf("%s, %s: %v", c.path, c.id, err)
			continue
		}
		checkDraft(t, d, nil)
	}
}

func FuzzOpenAPI(f *testing.F) {
	f.Add([]byte(openapiFile), "createOrder")
	f.Add([]byte(`{"openapi":"3.0.0","info":{},"servers":[{"url":"http://h"}],"paths":{"/a{{b}":{"post":{"operationId":"123","requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/A"}}}}}}},"components":{"schemas":{"A":{"allOf":[{"$ref":"#/components/schemas/A"}],"properties":{"x":{"$ref":"x.yaml"}}}}}}`), "123")
	f.Add([]byte(`{"openapi":"3.0.0","paths":{"/a":{"post":{"operationId":"o","parameters":[{"name":"dry_run","in":"query","schema":{"type":"string","enum":["no","{{x}}"]}}],"requestBody":{"content":{"application/json":{"schema":{"required":["b"],"properties":{"b":{"type":"integer"},"validateOnly":{"type":"boolean"}}}}}}}},"/a:preview":{"post":{}}}}`), "o")
	f.Fuzz(func(t *testing.T, data []byte, operation string) {
		d, err := OpenAPI(data, APIChoice{Operation: operation, Server: "http://h"})
		checkDraft(t, d, err)
	})
}

// A form is written as the document's encoding says.
func TestOpenAPIForms(t *testing.T) {
	const document = `openapi: 3.0.0
info: {title: x, version: "1"}
servers: [{url: https://h}]
paths:
  /charges:
    get:
      responses: {"200": {description: x, content: {application/json: {schema: {type: object, properties: {object: {type: string}, data: {type: array, items: {type: object, properties: {id: {type: string}}}}}}}}}}
    post:
      requestBody:
        content:
          application/x-www-form-urlencoded:
            encoding: {card: {style: deepObject, explode: true}, tags: {style: form, explode: false}, meta: {contentType: application/json}}
            schema:
              type: object
              required: [amount, card, tags, list, meta]
              properties:
                amount: {type: integer, example: 100}
                card: {type: object, required: [number, address], properties: {number: {type: string, example: "4242 4242"}, cvc: {type: string, example: "1"}, address: {type: object, required: [city], properties: {city: {type: string, enum: [B&n, X]}}}}}
                tags: {type: array, example: [a, b]}
                list: {type: array, example: [c, d]}
                meta: {type: object, example: {k: v}}
                other: {type: string, example: no}
      responses: {}
`
	d, err := OpenAPI([]byte(document), APIChoice{Operation: "POST /charges"})
	if err != nil {
		t.Fatal(err)
	}
	text := string(d.YAML)
	if !strings.Contains(text, "amount=100&card%5Bnumber%5D=4242%204242&card%5Baddress%5D%5Bcity%5D=B%26n&tags=a%2Cb&list=c&list=d&meta=%7B%22k%22%3A%22v%22%7D") {
		t.Errorf("the form is not as the encoding says:\n%s", text)
	}
	// The list of the same path is the reader, so nothing is left to fill in.
	for _, want := range []string{"url: \"https://h/charges\"", "count: /data", "id: /id"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if _, err := plan.Parse("", d.YAML); err != nil {
		t.Error(err)
	}
}
