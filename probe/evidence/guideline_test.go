package evidence

import (
	"net/url"
	"regexp"
	"slices"
	"testing"
)

// Each kind of finding has an entry of each guideline, and each entry is what
// its guideline calls an id.
func TestGuidelinesAreComplete(t *testing.T) {
	forms := []*regexp.Regexp{
		regexp.MustCompile(`^v5\.0\.0-(1?[0-9])\.[1-9]\.[1-9][0-9]?$`),
		regexp.MustCompile(`^WSTG-(v42-)?(INFO|CONF|ATHZ|ERRH|BUSL)-[01][0-9]$`),
		regexp.MustCompile(`^(Intelligence Gathering|Vulnerability Analysis|Exploitation)$`),
		regexp.MustCompile(`^TA00(43|01|09|40)$`),
		regexp.MustCompile(`^CWE-[1-9][0-9]{1,3}$`),
	}
	used := map[string]bool{}
	for _, e := range Catalogue() {
		for i, list := range e.Guidelines.Lists() {
			if len(list) == 0 {
				t.Errorf("%s: no entry of %s", e.ID, Standards()[i])
			}
			if len(slices.Compact(slices.Sorted(slices.Values(list)))) != len(list) {
				t.Errorf("%s: %q has one twice", e.ID, list)
			}
			for _, id := range list {
				used[id] = true
				g, ok := Guideline(id)
				if !ok || g.Title == "" || g.ID != id || g.Standard != Standards()[i] {
					t.Errorf("%s: %s is not explained: %+v", e.ID, id, g)
				}
				if !forms[i].MatchString(id) {
					t.Errorf("%s: %q is no id of %s", e.ID, id, Standards()[i])
				}
				if u, err := url.Parse(g.URL); err != nil || u.Host == "" {
					t.Errorf("%s leads to %q: %v", id, g.URL, err)
				}
			}
		}
		if f := e.Finding("race"); len(f.Guidelines.All()) == 0 {
			t.Errorf("%s: a finding of it has no guidelines", e.ID)
		}
		// A run of an earlier version does not say them.
		if f := (Finding{ID: e.ID}); !slices.Equal(f.GuidelinesOf().All(), e.Guidelines.All()) {
			t.Errorf("%s: without its own a finding has %v", e.ID, f.GuidelinesOf())
		}
	}
	for id := range guidelines {
		if !used[id] {
			t.Errorf("nothing is %s", id)
		}
	}
	for id := range mapping {
		if _, ok := Lookup(id); !ok {
			t.Errorf("%s is no kind of finding", id)
		}
	}
	if f := (Finding{ID: "nothing"}); len(f.GuidelinesOf().All()) != 0 {
		t.Error("a finding that is none has guidelines")
	}
}

func TestSumGuidelines(t *testing.T) {
	e, _ := Lookup("double-effect-race")
	g, _ := Lookup("double-effect-sequential")
	sum := SumGuidelines([]Operation{{Findings: []Finding{e.Finding("race"), g.Finding("duplicate")}}, {Findings: []Finding{e.Finding("race")}}})
	var ids []string
	for _, s := range sum {
		ids = append(ids, s.ID)
		if s.ID == refOnce && !slices.Equal(s.Findings, []FindingID{"double-effect-race", "double-effect-sequential"}) {
			t.Errorf("%s is said of %q", s.ID, s.Findings)
		}
	}
	want := []string{"v5.0.0-2.3.2", "v5.0.0-2.3.3", "v5.0.0-2.3.4", "v5.0.0-15.4.2", "WSTG-BUSL-11", "WSTG-v42-BUSL-05", "Exploitation", "TA0040", "CWE-362", "CWE-367", "CWE-837"}
	if !slices.Equal(ids, want) {
		t.Errorf("%q; want %q", ids, want)
	}
	if len(SumGuidelines([]Operation{{}})) != 0 {
		t.Error("no finding has guidelines")
	}
}
