package conditional

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tagPattern and listPattern are entity-tag and #entity-tag as RFC 9110 8.8.3 and
// 5.6.1.2 have them.
const tagPattern = `(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"`

var (
	oneTag   = regexp.MustCompile(`^` + tagPattern + `$`)
	listTags = regexp.MustCompile(`^[ \t]*(?:` + tagPattern + `)?(?:[ \t]*,[ \t]*(?:` + tagPattern + `)?)*[ \t]*$`)
)

// wide makes a rune of each byte: regexp knows UTF-8 only.
func wide(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

func TestParseTags(t *testing.T) {
	for _, tt := range []struct {
		lines []string
		want  string // the tags, "*", or "" for malformed
	}{
		{[]string{`"7"`}, `"7"`},
		{[]string{` W/"7" `}, `W/"7"`},
		{[]string{`"7", "8",W/"9"`}, `"7" "8" W/"9"`},
		{[]string{`"7"`, `"8" , "9"`}, `"7" "8" "9"`},
		{[]string{`,, "7" ,,	,"8",`}, `"7" "8"`},
		{[]string{`"a,b", "\"`}, `"a,b" "\"`},
		{[]string{`""`}, `""`},
		{[]string{"\"\xe4\xff\""}, "\"\xe4\xff\""},
		{[]string{"*"}, "*"},
		{[]string{"\t* "}, "*"},
		{[]string{""}, "empty"},
		{[]string{" ,"}, "empty"},
		{[]string{`"*"`}, `"*"`},
		{nil, "not sent"},

		{[]string{"7"}, ""},
		{[]string{`'7'`}, ""},
		{[]string{`"7`}, ""},
		{[]string{`7"`}, ""},
		{[]string{`"`}, ""},
		{[]string{`w/"7"`}, ""},
		{[]string{`W/ "7"`}, ""},
		{[]string{`W/`}, ""},
		{[]string{`W/*`}, ""},
		{[]string{`"7" "8"`}, ""},
		{[]string{`"7"; "8"`}, ""},
		{[]string{`"a b"`}, ""},
		{[]string{"\"a\x00\""}, ""},
		{[]string{"\"a\x7f\""}, ""},
		{[]string{`*, "7"`}, ""},
		{[]string{`"7", *`}, ""},
		{[]string{"*", "*"}, ""},
		{[]string{"*", `"7"`}, ""},
		{[]string{`"7"`, "*"}, ""},
		{[]string{"*,"}, ""},
		{[]string{"**"}, ""},
	} {
		got, err := parseTags(tt.lines)
		if show := shown(got, err); show != tt.want {
			t.Errorf("%q is %q (%v), want %q", tt.lines, show, err, tt.want)
		}
	}
}

func shown(t tags, err error) string {
	var all []string
	for _, tag := range t.list {
		all = append(all, tag.String())
	}
	switch {
	case err != nil:
		return ""
	case !t.sent:
		return "not sent"
	case t.any:
		return "*"
	case len(all) == 0:
		return "empty"
	}
	return strings.Join(all, " ")
}

func TestTagsAreBounded(t *testing.T) {
	line := strings.Repeat(`"7",`, MaxTags)
	if _, err := parseTags([]string{line}); err != nil {
		t.Error(err)
	}
	if _, err := parseTags([]string{line, `"8"`}); err == nil {
		t.Errorf("%d tags are taken", MaxTags+1)
	}
}

// The examples of RFC 9110 8.8.3.2.
func TestComparison(t *testing.T) {
	for _, tt := range []struct {
		a, b         string
		strong, weak bool
	}{
		{`W/"1"`, `W/"1"`, false, true},
		{`W/"1"`, `W/"2"`, false, false},
		{`W/"1"`, `"1"`, false, true},
		{`"1"`, `"1"`, true, true},
	} {
		a, errA := ParseTag(tt.a)
		b, errB := ParseTag(tt.b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		for range 2 {
			if a.Same(b) != tt.strong || a.Equivalent(b) != tt.weak {
				t.Errorf("%v and %v: strong %t, weak %t", a, b, a.Same(b), a.Equivalent(b))
			}
			a, b = b, a
		}
	}
}

func TestVersionTag(t *testing.T) {
	for _, v := range []int64{1, 7, 10, math.MaxInt64} {
		for _, tag := range []Tag{VersionTag(v), VersionTag(v).Variant("xml"), VersionTag(v).Variant("xml").Variant("gzip")} {
			read, err := ParseTag(tag.String())
			if got, ok := read.Version(); err != nil || read != tag || !ok || got != v {
				t.Errorf("%v is read as %v, of version %d: %v", tag, read, got, err)
			}
		}
	}
	if s := VersionTag(7).Variant("xml").String(); s != `"7-xml"` {
		t.Errorf("a variant is %s", s)
	}
	for _, opaque := range []string{"", "0", "-1", "+1", "07", "7x", " 7", "7.0", "seven", "9223372036854775808", "-", "7_xml"} {
		if v, ok := (Tag{Opaque: opaque}).Version(); ok {
			t.Errorf("%q is version %d", opaque, v)
		}
	}
	if s := (Tag{Opaque: `a"b`}).String(); s != "" {
		t.Errorf("a quote is sent: %s", s)
	}
}

func FuzzTags(f *testing.F) {
	for _, s := range []string{`"7"`, `W/"7", "8"`, "*", `,"a,b",`, `"a" "b"`, "\"\xff\"", "* ,", "", `W/"`, "\"\t\""} {
		f.Add(s, `"8"`)
		f.Add("", s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		want := listTags.MatchString(wide(a)) && listTags.MatchString(wide(b))
		got, err := parseTags([]string{a, b})
		if (err == nil) != want && len(got.list) < MaxTags && strings.Count(a+b, `"`) <= 2*MaxTags {
			t.Fatalf("%q, %q: %v; by the grammar it is well-formed: %t", a, b, err, want)
		}
		if err != nil {
			return
		}
		// Two lines are one list.
		joined, err := parseTags([]string{a + "," + b})
		if err != nil || !slices.Equal(joined.list, got.list) || joined.any {
			t.Fatalf("%q, %q is %v, joined it is %v: %v", a, b, got, joined, err)
		}
		for _, tag := range got.list {
			again, err := ParseTag(tag.String())
			if err != nil || again != tag || !oneTag.MatchString(wide(tag.String())) {
				t.Fatalf("%#v is sent as %s and read as %#v: %v", tag, tag, again, err)
			}
			if v, ok := tag.Version(); ok && !strings.HasPrefix(tag.Opaque, fmt.Sprint(v)) {
				t.Fatalf("%v is version %d", tag, v)
			}
		}
		star, err := parseTags([]string{a})
		if alone := strings.Trim(a, " \t") == "*"; err == nil && star.any != alone {
			t.Fatalf("%q is any: %t", a, star.any)
		}
	})
}
