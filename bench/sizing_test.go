package bench

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const sizingFile = "../docs/sizing.md"

// TestSizing computes docs/sizing.md from its first tables. With
// SEMEL_SIZING_WRITE set it writes what differs into the file.
func TestSizing(t *testing.T) {
	text, err := os.ReadFile(sizingFile)
	if err != nil {
		t.Fatal(err)
	}
	got, err := computeSizing(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("SEMEL_SIZING_WRITE") != "" {
		if err := os.WriteFile(sizingFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was := slices.Collect(strings.Lines(string(text)))
	for i, line := range slices.Collect(strings.Lines(got)) {
		if line != was[i] {
			t.Errorf("line %d says\n%s; it comes to\n%s", i+1, was[i], line)
		}
	}
}

var symbol = regexp.MustCompile("^`([a-z_0-9]+)`")

// computeSizing returns the document with the last two cells of each row of
// results as the row's formula makes them of the symbols above it, once for
// each store.
func computeSizing(text string) (string, error) {
	stores := [2]*types.Package{types.NewPackage("sqlite", "sqlite"), types.NewPackage("postgres", "postgres")}
	define := func(i int, name string, v float64) {
		stores[i].Scope().Insert(types.NewConst(token.NoPos, stores[i], name, types.Typ[types.UntypedFloat], constant.MakeFloat64(v)))
	}
	var out strings.Builder
	results, known := 0, 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name := symbol.FindStringSubmatch(cells[0])
		if name == nil || !strings.HasPrefix(line, "|") || len(cells) != 4 {
			out.WriteString(line)
			continue
		}
		formula, computed := strings.CutPrefix(cells[1], "`")
		formula = strings.TrimSuffix(formula, "`")
		for i := range stores {
			cell := &cells[2+i]
			if !computed {
				v, err := strconv.ParseFloat(strings.ReplaceAll(*cell, ",", ""), 64)
				if err != nil {
					return "", fmt.Errorf("%s: %w", name[1], err)
				}
				define(i, name[1], v)
				known++
				continue
			}
			v, err := types.Eval(token.NewFileSet(), stores[i], token.NoPos, formula)
			if err != nil {
				return "", fmt.Errorf("%s = %s: %w", name[1], formula, err)
			}
			f, _ := constant.Float64Val(constant.ToFloat(v.Value))
			define(i, name[1], f)
			*cell = digits(f)
			results++
		}
		out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	if known == 0 || results == 0 {
		return "", fmt.Errorf("%d figures and %d results: the tables are not as they should be", known, results)
	}
	return out.String(), nil
}

// digits writes three of them.
func digits(v float64) string {
	if v == 0 || math.IsInf(v, 0) {
		return fmt.Sprint(v)
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	v = math.Round(v/unit) * unit
	text := strconv.FormatFloat(v, 'f', max(0, int(-math.Floor(math.Log10(unit)+0.5))), 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest = strings.TrimRight(rest, "0"); rest != "" {
		whole += "." + rest
	}
	return whole
}

func TestComputeSizing(t *testing.T) {
	const text = "# x\n| symbol | what | SQLite | PostgreSQL |\n|---|---|---|---|\n| `n` | keys | 1,000 | 3 |\n\n" +
		"| result | formula | SQLite | PostgreSQL |\n|---|---|---|---|\n| `r`: half | `n / 2` | | 7 |\n| `s`: more | `r * 86400` | | |\n"
	got, err := computeSizing(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| `r`: half | `n / 2` | 500 | 1.5 |\n", "| `s`: more | `r * 86400` | 43,200,000 | 130,000 |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if _, err := computeSizing(strings.Replace(text, "n / 2", "m / 2", 1)); err == nil {
		t.Error("an unknown symbol")
	}
	for v, want := range map[float64]string{0.0123456: "0.0123", 11574.07: "11,600", 0.5: "0.5", 999.9: "1,000", 7: "7", 1.05: "1.05"} {
		if got := digits(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
