package plan

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The rules in the tags of the plan's types are those that JSON Schema can say
// as well. They are checked where a value is written; a zero value in a plan
// made in Go counts as not written.

// rule is a parsed rule tag.
//
//	required     must be written, and not be empty
//	empty        strings may be empty
//	min, max     of a number or of the numbers in a list; max of a string's length in characters
//	items        most elements of a list or mapping
//	enum         the strings allowed
//	names        the form of a string, of the strings in a list, or of the names in a mapping
type rule struct {
	required, empty bool
	min, max, items int
	enum            []string
	names           string
}

func parseRule(tag string) (r rule) {
	for part := range strings.SplitSeq(tag, ",") {
		name, arg, _ := strings.Cut(part, "=")
		switch name {
		case "":
		case "required":
			r.required = true
		case "empty":
			r.empty = true
		case "min":
			r.min, _ = strconv.Atoi(arg)
		case "max":
			r.max, _ = strconv.Atoi(arg)
		case "items":
			r.items, _ = strconv.Atoi(arg)
		case "enum":
			r.enum = strings.Split(arg, "|")
		case "names":
			r.names = arg
		default:
			panic("plan: unknown rule " + name)
		}
	}
	return r
}

// form is what a kind of name looks like.
type form struct {
	pattern string
	what    string
	re      *regexp.Regexp
}

var forms = func() map[string]form {
	m := map[string]form{
		"label":     {pattern: `^[A-Za-z0-9][A-Za-z0-9 ._/-]*$`, what: "letters, digits, spaces and . _ / -"},
		"operation": {pattern: `^[A-Za-z0-9][A-Za-z0-9._-]*$`, what: "letters, digits and . _ -"},
		"variable":  {pattern: `^[a-z][a-z0-9_]*$`, what: "a name in lower case: letters, digits and _"},
		"header":    {pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", what: "a header name"},
		"cookie":    {pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", what: "a cookie name"},
		"graphql":   {pattern: `^[_A-Za-z][_0-9A-Za-z]*$`, what: "a GraphQL name: letters, digits and _"},
		"method":    {pattern: `^[A-Z]+$`, what: "a method in capitals"},
		"address":   {pattern: `^[^/?#@ ]+:[0-9]{1,5}$`, what: "host:port"},
		"base64":    {pattern: `^[A-Za-z0-9+/\n]*={0,2}\n?$`, what: "standard base64"},
		"pointer":   {pattern: `^(/([^~/]|~[01])*)*$`, what: "a JSON pointer: empty, or beginning with /"},
		"member":    {pattern: `^(/([^~/]|~[01])*)+$`, what: "a JSON pointer to a member, beginning with /"},
	}
	for name, f := range m {
		f.re = regexp.MustCompile(f.pattern)
		m[name] = f
	}
	return m
}()

// durationPattern is what Go's durations have in common with what people write.
const durationPattern = `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`

var durationForm = regexp.MustCompile(durationPattern)

var (
	experimentType = reflect.TypeFor[Experiment]()
	durationType   = reflect.TypeFor[time.Duration]()
	pairsType      = reflect.TypeFor[Pairs]()
	headerType     = reflect.TypeFor[Header]()
	jsonType       = reflect.TypeFor[JSON]()
)

// field is what the tags of a struct's field say.
type field struct {
	reflect.StructField
	key  string
	rule rule
}

// fieldsOf returns the fields of a struct type and, if it is given in one of
// several ways, their keys; exactly says that no two may be given together.
func fieldsOf(t reflect.Type) (list []field, oneOf []string, exactly bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if keys, ok := f.Tag.Lookup("one"); ok {
			oneOf, exactly = strings.Split(keys, ","), true
		}
		if keys, ok := f.Tag.Lookup("any"); ok {
			oneOf = strings.Split(keys, ",")
		}
		if key := f.Tag.Get("yaml"); key != "" {
			list = append(list, field{StructField: f, key: key, rule: parseRule(f.Tag.Get("rule"))})
		}
	}
	return list, oneOf, exactly
}

// checkWritten returns what is wrong with a value that is written down, by its
// rule. Elements and members are checked by themselves.
func (r rule) checkWritten(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer:
		return r.checkWritten(v.Elem())
	case v.Type() == jsonType:
	case v.Kind() == reflect.String:
		return r.checkString(v.String(), v.Type() == experimentType)
	case v.Type() == durationType:
		if v.Int() <= 0 {
			return "must be longer than 0"
		}
	case v.Kind() == reflect.Int:
		return r.checkInt(int(v.Int()))
	case v.Kind() == reflect.Slice:
		switch {
		case r.required && v.Len() == 0:
			return "is empty"
		case r.items > 0 && v.Len() > r.items:
			return fmt.Sprintf("has %d elements; at most %d are allowed", v.Len(), r.items)
		}
	}
	return ""
}

func (r rule) checkInt(n int) string {
	switch {
	case n < r.min:
		return fmt.Sprintf("is %d; at least %d is needed", n, r.min)
	case r.max > 0 && n > r.max:
		return fmt.Sprintf("is %d; at most %d is allowed", n, r.max)
	}
	return ""
}

func (r rule) checkString(s string, experiment bool) string {
	enum := r.enum
	if experiment {
		for _, e := range Experiments() {
			enum = append(enum, string(e))
		}
	}
	mayBeEmpty := r.empty || r.names == "pointer"
	switch {
	case s == "" && !mayBeEmpty:
		return "is empty"
	case r.max > 0 && utf8.RuneCountInString(s) > r.max:
		return fmt.Sprintf("is %d characters long; at most %d are allowed", utf8.RuneCountInString(s), r.max)
	case len(enum) > 0 && !slices.Contains(enum, s):
		return fmt.Sprintf("must be one of %s%s", strings.Join(enum, ", "), didYouMean(s, enum))
	case r.names != "" && !forms[r.names].re.MatchString(s):
		return "must be " + forms[r.names].what
	}
	return ""
}

// element is the rule for the elements of a list.
func (r rule) element() rule {
	return rule{empty: r.empty, min: r.min, max: r.max, enum: r.enum, names: r.names}
}

// checkOneOf returns what is wrong with the ways that are given.
func checkOneOf(keys []string, exactly bool, given []string) string {
	switch {
	case len(keys) == 0:
	case len(given) == 0 && exactly:
		return "needs one of " + strings.Join(keys, ", ")
	case len(given) == 0:
		return "needs at least one of " + strings.Join(keys, ", ")
	case exactly && len(given) > 1:
		return "has " + strings.Join(given, " and ") + "; only one of them is allowed"
	}
	return ""
}

// checkRules reports where a plan made in Go breaks the rules.
func checkRules(ps *problems, v reflect.Value, r rule, path string) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Struct {
		list, oneOf, exactly := fieldsOf(v.Type())
		var given []string
		for _, f := range list {
			fv, at := v.FieldByIndex(f.Index), join(path, f.key)
			switch {
			case !fv.IsZero() || fv.Kind() == reflect.Struct:
				checkRules(ps, fv, f.rule, at)
			case f.rule.required:
				ps.add(at, "is missing")
			}
			if !fv.IsZero() && slices.Contains(oneOf, f.key) {
				given = append(given, f.key)
			}
		}
		if why := checkOneOf(oneOf, exactly, given); why != "" {
			ps.add(path, "%s", why)
		}
		return
	}
	if why := r.checkWritten(v); why != "" {
		ps.add(path, "%s", why)
	}
	switch {
	case v.Type() == jsonType:
		if _, err := compactJSON(v.Bytes()); err != nil {
			ps.add(path, "%v", err)
		}
	case v.Type() == pairsType || v.Type() == headerType:
		for i := range v.Len() {
			m := v.Index(i)
			name := m.Field(0).String()
			if why := (rule{names: r.names}).checkString(name, false); why != "" {
				ps.add(join(path, name), "the name %s", why)
			}
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			checkRules(ps, v.Index(i), r.element(), index(path, i))
		}
	}
}

// didYouMean suggests what may have been meant.
func didYouMean(s string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(s, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is how many letters apart two names are (Levenshtein), for short ones.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
