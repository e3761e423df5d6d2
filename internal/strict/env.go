package strict

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// fromEnv puts environment variables into a scalar. What they hold is a value and
// never structure; without quotes around it, it may be a number or true. It reports
// whether it could.
func (d *Decoder) fromEnv(n *Node, path string) bool {
	if d.Env == nil || n.Kind != yaml.ScalarNode || strings.IndexByte(n.Value, '$') < 0 {
		return true
	}
	value, names, err := d.expand(n.Value)
	if err != nil {
		d.Add(path, "%v", err)
		return false
	}
	n.Value = value
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		n.Tag = plainTag(value)
	}
	at := d.Source.at[path]
	at.Env = names
	d.Source.at[path] = at
	return true
}

// word is text that YAML reads as a scalar, unless it is nothing but dashes and dots.
var word = regexp.MustCompile(`^[-.]*[\w+~][\w+~.-]*$`)

// plainTag returns what YAML takes text without quotes for.
func plainTag(text string) string {
	if text == "" {
		return "!!null"
	}
	var doc Node
	if word.MatchString(text) && yaml.Unmarshal([]byte(text), &doc) == nil && len(doc.Content) == 1 && doc.Content[0].Kind == yaml.ScalarNode {
		return doc.Content[0].Tag
	}
	return "!!str"
}

// expand returns s with its variables replaced. Errors quote no value.
func (l *Language) expand(s string) (out string, names []string, err error) {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "$")
		b.WriteString(before)
		if !ok {
			return b.String(), names, nil
		}
		if after, ok := strings.CutPrefix(rest, "$"); ok {
			b.WriteByte('$')
			s = after
			continue
		}
		inside, after, ok := strings.Cut(strings.TrimPrefix(rest, "{"), "}")
		if rest == "" || rest[0] != '{' || !ok {
			return "", nil, errors.New("has a $ that begins no ${NAME}; write $$ for a dollar sign")
		}
		name, fallback, hasFallback := strings.Cut(inside, ":-")
		if !envName.MatchString(name) || strings.Contains(fallback, "$") {
			return "", nil, errors.New("has a ${} without a name in it; write ${NAME} or ${NAME:-default}, and $$ for a dollar sign")
		}
		value, set := l.Env(name)
		switch {
		case set && value != "" || set && !hasFallback:
		case hasFallback:
			value = fallback
			names = append(names, name+" (not set)")
		default:
			return "", nil, fmt.Errorf("names the environment variable %s, which is not set; set it, or write ${%s:-default}", name, name)
		}
		if len(names) == 0 || names[len(names)-1] != name+" (not set)" {
			names = append(names, name)
		}
		b.WriteString(value)
		s = after
	}
}
