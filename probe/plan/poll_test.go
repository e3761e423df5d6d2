package plan

import (
	"slices"
	"strings"
	"testing"
)

// Where to ask what became of a request is made of what its response has given,
// which stays where the plan has it.
func TestStatusURL(t *testing.T) {
	for _, c := range []struct{ url, secret, given, want string }{
		{"http://127.0.0.1:1/jobs/{{.job}}?of={{.key}}", "false", "a/b?c", "http://127.0.0.1:1/jobs/a%2Fb%3Fc?of=KEY"},
		{"http://127.0.0.1:1/jobs/{{.job}}", "false", "..", "error: . or .."},
		{"http://127.0.0.1:1{{.job}}", "false", "/jobs/1", "http://127.0.0.1:1/jobs/1"},
		{"{{.job}}", "false", "http://127.0.0.1:1/jobs/1", "http://127.0.0.1:1/jobs/1"},
		{"{{.job}}", "false", "file:///etc/passwd", "error: not an http or https URL"},
		{"http://127.0.0.1:1/{{.resource_id}}", "false", "x", "http://127.0.0.1:1/r%201"},
		{"http://127.0.0.1:1/{{.job}}", "true", "a ticket", "http://127.0.0.1:1/a%20ticket"},
		{"http://127.0.0.1:1/{{.job}}", "true", "short", "error: too short"},
	} {
		p, err := Parse("p.yaml", []byte(minimal+"    key: {header: K}\n    poll: {url: '"+c.url+"', take: [{name: job, pointer: /job, secret: "+c.secret+"}]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRenderer(p, Source{})
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Draw("o")
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.StatusURL(v, []string{c.given}, "r 1")
		if err != nil {
			got = "error: " + err.Error()
		}
		if why, bad := strings.CutPrefix(c.want, "error: "); bad && (err == nil || !strings.Contains(got, why)) || !bad && got != strings.ReplaceAll(c.want, "KEY", v.Key()) {
			t.Errorf("%s with %q: %s", c.url, c.given, got)
		}
		kept := slices.ContainsFunc(r.Secrets(), func(s Secret) bool { return s.Value == c.given })
		if err == nil && kept != (c.secret == "true") {
			t.Errorf("%s: it is a secret: %v", c.url, kept)
		}
		if _, again := v.taken["job"]; again {
			t.Error("what one response has given is not the request's")
		}
	}
}

// Words that a plan gives mean what it says, even where the usual ones say
// something else.
func TestPollWords(t *testing.T) {
	p := Plan{Operations: []Operation{{Poll: &Poll{Done: []string{"Accepted"}}}}}
	d := p.WithDefaults().Operations[0].Poll
	if slices.Contains(d.Pending, "accepted") || !slices.Contains(d.Pending, "queued") || !slices.Equal(d.Done, []string{"Accepted"}) || len(d.Failed) == 0 {
		t.Errorf("%+v", d)
	}
}
