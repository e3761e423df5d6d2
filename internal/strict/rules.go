package strict

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

// Language is a kind of file.
type Language struct {
	// Noun names it in messages: "plan".
	Noun string
	// MaxBytes bounds the text, and MaxDepth what is nested in free values.
	MaxBytes, MaxDepth int
	// Forms are what names look like, by the names rule.
	Forms map[string]Form
	// Kinds are the types that are not read by what Go makes of them.
	Kinds map[reflect.Type]Kind
	// Env has environment variables put into scalar values, after parsing:
	// ${NAME}, ${NAME:-default}, and $$ for a dollar sign. Nil for none.
	Env func(name string) (value string, ok bool)
}

// Kind is how a type is read and described.
type Kind struct {
	// Decode reads a value; nil for the usual way.
	Decode func(d *Decoder, n *Node, v reflect.Value, r Rule, path string)
	// Check says what is wrong with a value that was made in Go, beyond its rule.
	Check func(l *Language, f *Findings, v reflect.Value, r Rule, path string)
	// Schema describes a value; nil for the usual way.
	Schema func(r Rule) map[string]any
	// Enum are the strings allowed.
	Enum []string
}

// Form is what a kind of name looks like.
type Form struct {
	Pattern string
	What    string
	re      *regexp.Regexp
}

// NewForm returns a form.
func NewForm(pattern, what string) Form { return Form{pattern, what, regexp.MustCompile(pattern)} }

// Match reports whether s is of the form.
func (f Form) Match(s string) bool { return f.re.MatchString(s) }

// Rule is a parsed rule tag.
type Rule struct {
	Required, Empty, Secret bool
	Min, Max, Items         int
	Enum                    []string
	Names                   string
}

func parseRule(tag string) (r Rule) {
	for part := range strings.SplitSeq(tag, ",") {
		name, arg, _ := strings.Cut(part, "=")
		switch name {
		case "":
		case "required":
			r.Required = true
		case "empty":
			r.Empty = true
		case "secret":
			r.Secret = true
		case "min":
			r.Min, _ = strconv.Atoi(arg)
		case "max":
			r.Max, _ = strconv.Atoi(arg)
		case "items":
			r.Items, _ = strconv.Atoi(arg)
		case "enum":
			r.Enum = strings.Split(arg, "|")
		case "names":
			r.Names = arg
		default:
			panic("strict: unknown rule " + name)
		}
	}
	return r
}

// DurationPattern is what Go's durations have in common with what people write.
const DurationPattern = `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`

var (
	durationForm = regexp.MustCompile(DurationPattern)
	durationType = reflect.TypeFor[time.Duration]()
)

// Field is what the tags of a struct's field say.
type Field struct {
	reflect.StructField
	Key  string
	Rule Rule
	// Of is the struct that declares it, which may be an embedded one.
	Of reflect.Type
}

// FieldsOf returns the fields of a struct type and, if it is given in one of
// several ways, their keys; exactly says that no two may be given together.
func FieldsOf(t reflect.Type) (list []Field, oneOf []string, exactly bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if keys, ok := f.Tag.Lookup("one"); ok {
			oneOf, exactly = strings.Split(keys, ","), true
		}
		if keys, ok := f.Tag.Lookup("any"); ok {
			oneOf = strings.Split(keys, ",")
		}
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			inner, _, _ := FieldsOf(f.Type)
			for _, e := range inner {
				e.Index = append([]int{i}, e.Index...)
				list = append(list, e)
			}
			continue
		}
		if key := f.Tag.Get("yaml"); key != "" {
			list = append(list, Field{StructField: f, Key: key, Rule: parseRule(f.Tag.Get("rule")), Of: t})
		}
	}
	return list, oneOf, exactly
}

// checkWritten returns what is wrong with a value that is written down, by its
// rule. Elements and members are checked by themselves.
func (l *Language) checkWritten(v reflect.Value, r Rule) string {
	switch {
	case v.Kind() == reflect.Pointer:
		return l.checkWritten(v.Elem(), r)
	case v.Kind() == reflect.String:
		if k := l.Kinds[v.Type()]; k.Enum != nil {
			r.Enum = append(slices.Clone(r.Enum), k.Enum...)
		}
		return l.CheckString(v.String(), r)
	case v.Type() == durationType:
		switch {
		case v.Int() < 0, v.Int() == 0 && !r.Empty:
			return "must be longer than 0"
		}
	case v.Kind() == reflect.Int, v.Kind() == reflect.Int64:
		return checkInt(int(v.Int()), r)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		switch {
		case r.Required && v.Len() == 0:
			return "is empty"
		case r.Items > 0 && v.Len() > r.Items:
			return fmt.Sprintf("has %d elements; at most %d are allowed", v.Len(), r.Items)
		}
	}
	return ""
}

func checkInt(n int, r Rule) string {
	switch {
	case n < r.Min:
		return fmt.Sprintf("is %d; at least %d is needed", n, r.Min)
	case r.Max > 0 && n > r.Max:
		return fmt.Sprintf("is %d; at most %d is allowed", n, r.Max)
	}
	return ""
}

// CheckString returns what is wrong with a string, or "".
func (l *Language) CheckString(s string, r Rule) string {
	form, ok := l.Forms[r.Names]
	switch {
	case s == "" && !r.Empty && !(ok && form.Match("")):
		return "is empty"
	case r.Max > 0 && utf8.RuneCountInString(s) > r.Max:
		return fmt.Sprintf("is %d characters long; at most %d are allowed", utf8.RuneCountInString(s), r.Max)
	case len(r.Enum) > 0 && !slices.Contains(r.Enum, s):
		return fmt.Sprintf("must be one of %s%s", strings.Join(r.Enum, ", "), DidYouMean(s, r.Enum))
	case ok && !form.Match(s) && (s != "" || !r.Empty):
		return "must be " + form.What
	}
	return ""
}

// element is the rule for the elements of a list.
func (r Rule) element() Rule {
	return Rule{Empty: r.Empty, Secret: r.Secret, Min: r.Min, Max: r.Max, Enum: r.Enum, Names: r.Names}
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

// Check reports where a value that was made in Go breaks the rules. A zero value
// counts as not written.
func (l *Language) Check(f *Findings, v reflect.Value, r Rule, path string) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Struct {
		list, oneOf, exactly := FieldsOf(v.Type())
		var given []string
		for _, field := range list {
			fv, at := v.FieldByIndex(field.Index), Join(path, field.Key)
			switch {
			case !fv.IsZero() || fv.Kind() == reflect.Struct:
				l.Check(f, fv, field.Rule, at)
			case field.Rule.Required:
				f.Add(at, "is missing")
			}
			if !fv.IsZero() && slices.Contains(oneOf, field.Key) {
				given = append(given, field.Key)
			}
		}
		if why := checkOneOf(oneOf, exactly, given); why != "" {
			f.Add(path, "%s", why)
		}
		return
	}
	if why := l.checkWritten(v, r); why != "" {
		f.Add(path, "%s", why)
	}
	switch k := l.Kinds[v.Type()]; {
	case k.Check != nil:
		k.Check(l, f, v, r, path)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			l.Check(f, v.Index(i), r.element(), Index(path, i))
		}
	}
}
