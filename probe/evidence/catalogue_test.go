package evidence

import (
	"regexp"
	"testing"
)

// Reports show these texts; a kind of finding without one would be shown
// without what to do.
func TestCatalogue(t *testing.T) {
	id := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	seen := map[FindingID]bool{}
	last := P0
	for _, e := range Catalogue() {
		if !id.MatchString(string(e.ID)) || seen[e.ID] {
			t.Errorf("%q is no id, or is there twice", e.ID)
		}
		seen[e.ID] = true
		if e.Title == "" || e.Explanation == "" || e.Remedy == "" || e.Advice == "" || len(e.References) == 0 {
			t.Errorf("%s: a text is missing", e.ID)
		}
		if e.Priority < last || (e.Priority != P0 && e.Priority != P1 && e.Priority != P2) {
			t.Errorf("%s: priority %q after %q", e.ID, e.Priority, last)
		}
		last = e.Priority
		if e.Basis != Established && e.Basis != Inferred {
			t.Errorf("%s: basis %q", e.ID, e.Basis)
		}
		for _, r := range e.References {
			if ReferenceURL(r) == "" {
				t.Errorf("%s: %q leads nowhere", e.ID, r)
			}
		}
		f := e.Finding("race", 1, 2)
		if f.ID != e.ID || f.Title != e.Title || f.Experiment != "race" || len(f.Sends) != 2 || f.Priority != e.Priority || f.Basis != e.Basis || f.Remedy != e.Remedy {
			t.Errorf("%s: finding %+v", e.ID, f)
		}
		if got, ok := Lookup(e.ID); !ok || got.Title != e.Title {
			t.Errorf("%s is not found", e.ID)
		}
	}
	if _, ok := Lookup("nothing"); ok {
		t.Error("an id that is not there is found")
	}
}

// Changing a returned entry does not change the catalogue.
func TestCatalogueIsCopied(t *testing.T) {
	e, _ := Lookup("double-effect-race")
	e.References[0] = "x"
	Catalogue()[0].References[0] = "x"
	if e, _ := Lookup("double-effect-race"); e.References[0] == "x" || Catalogue()[0].References[0] == "x" {
		t.Fatal("a caller can change the catalogue")
	}
}

func TestFieldsAreExplained(t *testing.T) {
	v := UnknownVerdict()
	for i, f := range verdictFields {
		for _, value := range f.values {
			*f.get(&v) = value
			got := v.Fields()[i]
			if got.Name != f.name || got.Value != value || got.Meaning == "" || got.Says == "" {
				t.Errorf("%s(%s) is not explained: %+v", f.name, value, got)
			}
		}
	}
	if got := v.Fields(); len(got) != 10 || got[9].Name != "confidence" || got[9].Value != "0.00" {
		t.Error(got)
	}
}
