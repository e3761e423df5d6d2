package plan

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/semelhq/semel/internal/strict"
)

// MaxResourceID is the maximum length of the id of a resource, in bytes.
const MaxResourceID = 1 << 10

// checkForeign returns why a text that the target has given goes nowhere.
func checkForeign(what, s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("%s, which the target gave, is %d bytes long; at most %d are used", what, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s, which the target gave, is not UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%s, which the target gave, contains a control character", what)
	}
	return nil
}

// putter puts a text that the target has given where a template has it: after
// what is there so far, once filters have made something of it. What it means
// there stays what the plan's author meant.
type putter func(before, s string, filters []string) (string, error)

// inURL takes a text as a segment of the path or a value of the query, which it
// cannot leave. In the place of the whole URL, or of all that comes after the
// host, it is what a Location is, and has to be well-formed.
func inURL(before, s string, filters []string) (string, error) {
	_, rest, absolute := strings.Cut(before, "://")
	dots := func(p string) bool {
		return slices.ContainsFunc(strings.Split(p, "/"), func(seg string) bool { return seg == "." || seg == ".." })
	}
	switch {
	case before == "":
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" || dots(u.Path) || !uriText.MatchString(s) {
			return "", errors.New("what the target gave is not an http or https URL without credentials, dots and fragment")
		}
		return s, nil
	case absolute && !strings.ContainsAny(rest, "/?#") && strings.HasPrefix(s, "taken-"):
		return "/" + filter("url", s), nil // a stand-in
	case absolute && !strings.ContainsAny(rest, "/?#"):
		u, err := url.Parse(s)
		if err != nil || !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || u.Fragment != "" || dots(u.Path) || !uriText.MatchString(s) {
			return "", errors.New("what the target gave comes right after the host, and is not a path that begins with / and has no dots and no fragment")
		}
		return s, nil
	case strings.ContainsAny(rest, "?#"):
	case s == "." || s == "..":
		return "", errors.New("what the target gave is . or .., and would lead to another path")
	}
	if len(filters) > 0 && filters[len(filters)-1] == "url" {
		return s, nil // the plan has escaped it
	}
	return filter("url", s), nil
}

// uriText is what may stand in a URL (RFC 3986), but for a fragment.
var uriText = regexp.MustCompile(`^([A-Za-z0-9._~:/?@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})*$`)

// inArgument takes a text as a part of an argument of a program, which must not
// become an option.
func inArgument(before, s string, _ []string) (string, error) {
	if before == "" && strings.HasPrefix(s, "-") {
		return "", errors.New("what the target gave begins with -, and the program could read it as an option")
	}
	return s, nil
}

// inText takes a text as a part of a body that is text: where that looks like
// JSON, of a string in it.
func inText(body string) putter {
	if body = strings.TrimLeft(body, " \t\r\n"); !strings.HasPrefix(body, "{") && !strings.HasPrefix(body, "[") {
		return nil
	}
	return func(_, s string, filters []string) (string, error) {
		if len(filters) > 0 && filters[len(filters)-1] == "json" {
			return s, nil
		}
		return filter("json", s), nil
	}
}

func (s scope) in(p putter) scope { s.put = p; return s }

// interpreters run text that they are given as an argument.
var interpreters = regexp.MustCompile(`(?i)^([a-z]*sh|busybox|cmd|powershell|python[0-9.]*|perl|ruby|node|php|lua|psql|mysql|mariadb|sqlite3?|awk|gawk|mawk|sed|jq|env|xargs|eval)(\.exe)?$`)

// joins are programs that make one command line of their arguments, for a shell.
var joins = regexp.MustCompile(`(?i)^((ssh|plink|rsh|cmd|powershell|pwsh)(\.exe)?|.*\.(bat|cmd))$`)

// code is an option whose argument is run.
var code = regexp.MustCompile(`(?i)^(-[a-z]*[ce]|/[ck]|--?(command|eval|execute|encodedcommand|run))$`)

// checkArgv refuses what the target has given where a program could run it: as
// the program itself, or as a part of a script.
// taken are the names of what steps take from the target's responses.
func checkArgv(ps *problems, argv, taken []string, at string) {
	runs, joined := false, false
	for i, arg := range argv {
		foreign, name := false, ""
		t, _ := parseTemplate(arg)
		for _, p := range t {
			if c := p.call; c != nil && (c.ref == "resource_id" || slices.Contains(taken, c.ref)) {
				foreign, name = true, "{{."+c.ref+"}}"
			}
		}
		switch {
		case !foreign:
		case i == 0:
			ps.Add(strict.Index(at, i), "must not name the program by %s, which the target gives", name)
		case joined:
			ps.Add(strict.Index(at, i), "must not give %s, which the target gives, to a program that builds a shell command line from it", name)
		case strings.ContainsAny(literals(t), " \t\r\n'\"`$;&|<>()"), runs && code.MatchString(argv[i-1]):
			ps.Add(strict.Index(at, i), "must not make %s, which the target gives, part of a script: give it as an argument of its own; in a shell script that is \"$1\", after a name for $0", name)
		}
		program := path.Base(strings.ReplaceAll(arg, `\`, "/"))
		runs, joined = runs || interpreters.MatchString(program), joined || joins.MatchString(program)
	}
}

func literals(t template) string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.literal)
	}
	return b.String()
}
