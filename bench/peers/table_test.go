package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkProtection/semel-memory/bare-2    100	 1000 ns/op	 100 B/op	 4 allocs/op
BenchmarkProtection/semel-memory/first-2   100	 5000 ns/op	 200 B/op	 30 allocs/op
BenchmarkProtection/fiber-v3/bare-2        100	 500 ns/op	 0 B/op	 1 allocs/op
BenchmarkProtection/fiber-v3/first-2       100	 1500 ns/op	 50 B/op	 11 allocs/op
BenchmarkSQLite/store/callers=256          100	 99 ns/op	 700 pairs/s
BenchmarkSQLite/plain/grouped=true/callers=256-16  100	 99 ns/op	 1000 pairs/s
PASS
`

func TestTable(t *testing.T) {
	one, err := parse(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	two, err := parse(strings.NewReader(strings.NewReplacer(" 5000 ns", " 3000 ns", " 700 pairs", " 600 pairs").Replace(output)))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := printTable(&text, compare([]values{one, two, {}})); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	// What is added is the difference to the bare handler; the round without
	// figures counts for nothing.
	for _, want := range []string{
		"| middleware, memory, first, ns/op added | 3000 | fiber v3 | 1000 | 3.00 (2.00 to 4.00) | <= 2, not met |",
		"| middleware, memory, first, allocs/op added | 26.0 | fiber v3 | 10.0 | 2.60 (2.60 to 2.60) | semel <= 25, not met |",
		"| SQLite claim+complete, 256 callers, pairs/s | 650 | two grouped inserts | 1000 | 0.65 (0.60 to 0.70) | >= 0.7, not met |",
		"| SQLite claim+complete, 64 callers, pairs/s | not measured | two grouped inserts | | | |",
	} {
		found := false
		for _, line := range lines {
			found = found || line == want
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

func TestAimMet(t *testing.T) {
	for _, tt := range []struct {
		aim        aim
		own, ratio float64
		want       string
	}{
		{aim{}, 1, 1, ""},
		{atMost(2), 9, 2, "met"},
		{atMost(2), 9, 1.9, "met"},
		{atMost(2), 1, 2.1, "not met"},
		{atLeast(0.7), 9, 0.7, "met"},
		{atLeast(0.7), 9, 0.8, "met"},
		{atLeast(0.7), 9, 0.6, "not met"},
		{ownAtMost(25), 25, 9, "met"},
		{ownAtMost(25), 26, 0.1, "not met"},
	} {
		if got := tt.aim.met(tt.own, tt.ratio); got != tt.want {
			t.Errorf("%v of %g, %g: %q, want %q", tt.aim, tt.own, tt.ratio, got, tt.want)
		}
	}
}
