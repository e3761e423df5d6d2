package semelhttp

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParsePrefer(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  preferences
		kept  []string // of the header, for the handler
	}{
		{nil, preferences{}, nil},
		{[]string{"wait=10"}, preferences{hasWait: true, wait: 10 * time.Second}, nil},
		{[]string{`wait="10"`}, preferences{hasWait: true, wait: 10 * time.Second}, nil},
		{[]string{"wait=0"}, preferences{hasWait: true}, nil},
		{[]string{" WAIT = 10 ; x=y"}, preferences{hasWait: true, wait: 10 * time.Second}, nil},
		{[]string{"respond-async, wait=10"}, preferences{async: true, hasWait: true, wait: 10 * time.Second}, nil},
		{[]string{"Respond-Async"}, preferences{async: true}, nil},
		{[]string{`respond-async=""`}, preferences{}, nil},
		{[]string{"respond-async=yes"}, preferences{}, nil},
		{[]string{"return=minimal, wait=5", "wait=7, handling=lenient"}, preferences{hasWait: true, wait: 5 * time.Second}, []string{"return=minimal", "handling=lenient"}},
		{[]string{`foo="wait=9, respond-async; \" wait=9"`}, preferences{}, []string{`foo="wait=9, respond-async; \" wait=9"`}},
		{[]string{`foo="bar", wait=3`}, preferences{hasWait: true, wait: 3 * time.Second}, []string{`foo="bar"`}},
		{[]string{"wait"}, preferences{}, nil},
		{[]string{"wait="}, preferences{}, nil},
		{[]string{"wait=-1"}, preferences{}, nil},
		{[]string{"wait=+1"}, preferences{}, nil},
		{[]string{"wait=1.5"}, preferences{}, nil},
		{[]string{"wait=x, wait=5"}, preferences{}, nil}, // the first counts, and says nothing
		{[]string{"wait=99999999999999999999999"}, preferences{hasWait: true, wait: longestWait}, nil},
		{[]string{",,, ,"}, preferences{}, nil},
		{[]string{`"`}, preferences{}, []string{`"`}},
		{[]string{`a="\`}, preferences{}, []string{`a="\`}},
	} {
		if got := parsePrefer(c.lines); got != c.want {
			t.Errorf("%q: %+v; want %+v", c.lines, got, c.want)
		}
		h := http.Header{"Prefer": slices.Clone(c.lines)}
		withoutWaiting(h)
		if !slices.Equal(h["Prefer"], c.kept) {
			t.Errorf("%q: the handler gets %q; want %q", c.lines, h["Prefer"], c.kept)
		}
	}
}

func FuzzParsePrefer(f *testing.F) {
	for _, s := range []string{"respond-async, wait=10", `foo="a,b;\"c"; x=y, WAIT = "3"`, "wait=99999999999999999999", `"`, "\x00=\xff;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		p := parsePrefer([]string{line})
		if p.wait < 0 || p.wait > longestWait || !p.hasWait && p.wait != 0 {
			t.Fatalf("%+v", p)
		}
		h := http.Header{"Prefer": {line}}
		withoutWaiting(h)
		if q := parsePrefer(h["Prefer"]); q != (preferences{}) {
			t.Fatalf("the handler still reads %+v", q)
		}
		if len(strings.Join(h["Prefer"], "")) > 2*len(line)+2 {
			t.Fatalf("%q grew to %q", line, h["Prefer"])
		}
	})
}
