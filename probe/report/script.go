package report

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
)

// scriptOf returns a POSIX shell script that sends what a finding was seen with
// once more, by curl, and prints the responses and the state: with values of
// its own in place of those that were drawn, and secrets from the environment.
// Where curl cannot do it, it is a script that calls semel for the one
// experiment, and says why.
//
// Nothing of the run is in it but as data: what comes from elsewhere is written
// in octal where it is no plain text, and never as code.
func scriptOf(r *evidence.Run, o *evidence.Operation, f evidence.Finding, x Extra) string {
	s := &reproduction{run: r, o: o, f: f, x: x}
	for i := range o.Experiments {
		if o.Experiments[i].Name == f.Experiment {
			s.e = &o.Experiments[i]
		}
	}
	if why := s.plan(); why != "" {
		return s.bySemel(why)
	}
	return s.byCurl()
}

// findingScript is the script of a finding.
type findingScript struct {
	File      string // in the run's folder
	Operation int
	Finding   int // place in the order of ranked
	Text      string
}

// mostScripts is how many findings have a script.
const mostScripts = 200

// scriptFile names the script of a finding in a run's folder; empty if it has
// none. Operation and finding are places, that in the order of ranked.
func scriptFile(operation, finding int, f evidence.Finding) string {
	if finding >= mostScripts || operation >= mostScripts {
		return ""
	}
	id := string(f.ID)
	if !stateName(id) {
		id = "finding"
	}
	return fmt.Sprintf("%s/%d-%d-%s.sh", ScriptDir, operation+1, finding+1, id)
}

// scripts returns the scripts of all findings.
func scripts(r *evidence.Run, x Extra) (all []findingScript) {
	for i := range r.Operations {
		for j, f := range ranked(r.Operations[i].Findings) {
			if file := scriptFile(i, j, f); file != "" && len(all) < mostScripts {
				all = append(all, findingScript{file, i, j, scriptOf(r, &r.Operations[i], f, x)})
			}
		}
	}
	return all
}

// reproduction is a script on its way.
type reproduction struct {
	run *evidence.Run
	o   *evidence.Operation
	f   evidence.Finding
	x   Extra
	e   *evidence.Experiment

	sends   []scripted // in their order; of a race one
	reads   []scripted
	dropped bool        // a read, for it is of what the first response named
	drawn   []string    // in the requests
	secrets [][2]string // placeholder and variable
}

// scripted is a request as a script sends it.
type scripted struct {
	send              evidence.Send
	method, url       string
	header            string // lines of curl's -H @FILE
	body              string
	hasBody, cut, own bool // own: it is sent while the one before runs
	pause             int  // seconds before it
}

// Most requests, and seconds of a pause, in a script: beyond them it is no
// longer quick to try.
const (
	mostScripted = 12
	mostPause    = 60
)

var (
	placeholder = regexp.MustCompile(`redacted-[0-9]{1,6}`)
	variable    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// plan chooses the requests; why says why curl cannot send them.
func (s *reproduction) plan() (why string) {
	switch {
	case s.e == nil || len(s.e.Sends) == 0:
		return "the finding is not about requests that were sent"
	case s.o.Signed:
		return "each delivery is signed separately, which curl does not do"
	}
	seen := map[string]bool{}
	var last *evidence.Send
	for i := range s.e.Sends {
		send := s.e.Sends[i]
		if s.e.Race != nil && len(s.sends) == 1 && send.Role != evidence.RoleRead {
			continue // one request, many times
		}
		switch send.Role {
		case evidence.RoleControl, evidence.RoleWarmUp, evidence.RoleReset:
			continue
		}
		q, why := s.request(send)
		if send.Role == evidence.RoleRead {
			if id := q.url + "\n" + q.header; why == "" && !seen[id] && len(s.reads) < mostScripted {
				seen[id] = true
				s.reads = append(s.reads, q)
			}
			continue
		}
		if why != "" {
			return why
		}
		if send.Cut != "" {
			if send.Delivery == "partial" || send.LastWriteUS < 0 {
				return "curl cannot cut a request off before its last byte"
			}
			q.cut = true
		}
		if s.e.Name == "in_flight" && last != nil && last.DoneUS > send.StartUS {
			q.own = true
		}
		if gap := float64(send.StartUS) / 1e6; last != nil && (s.e.Name == "late_retry" || s.e.Name == "retention_edge") {
			gap -= float64(last.DoneUS) / 1e6
			if q.pause = int(math.Ceil(gap)); q.pause > mostPause {
				return fmt.Sprintf("it waits for %d seconds between the requests", q.pause)
			}
		}
		if s.sends = append(s.sends, q); len(s.sends) > mostScripted {
			return fmt.Sprintf("it takes more than %d requests", mostScripted)
		}
		last = &send
	}
	if len(s.sends) == 0 && len(s.reads) == 0 {
		return "the finding is not about requests that were sent"
	}
	// What is read by an id that the first response gave is another thing here,
	// unless the client drew the id and another is drawn here.
	s.reads = slices.DeleteFunc(s.reads, func(q scripted) bool {
		gone := slices.ContainsFunc(s.e.Sends, func(x evidence.Send) bool {
			drawn := slices.ContainsFunc(s.e.Drawn, func(v string) bool { return drawnForm.MatchString(v) && strings.Contains(x.Resource, v) })
			return x.Resource != "" && x.Role != evidence.RoleRead && len(x.Resource) > 3 && !drawn && strings.Contains(q.url, x.Resource)
		})
		s.dropped = s.dropped || gone
		return gone
	})
	s.collect()
	return ""
}

// request takes a request out of the exchanges.
func (s *reproduction) request(send evidence.Send) (q scripted, why string) {
	x, ok := s.x.Exchanges[send.N]
	if !ok || x.Request == "" {
		return q, "the bytes of its requests are not here"
	}
	if len(x.Request) > maxExchangeShown {
		return q, "a request is too long for a script"
	}
	// Between head and body is an empty line; the body's own stay as they are.
	head, body, hasBody := x.Request, "", false
	if at := headEnd.FindStringIndex(x.Request); at != nil {
		head, body, hasBody = x.Request[:at[0]], x.Request[at[1]:], true
	}
	lines := strings.Split(strings.ReplaceAll(head, "\r\n", "\n"), "\n")
	u, err := url.Parse(send.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.ContainsFunc(send.URL, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return q, "a request has an address that cannot be given to curl"
	}
	if !regexp.MustCompile(`^[A-Z]{1,20}$`).MatchString(send.Method) {
		return q, "a request has a method that cannot be given to curl"
	}
	q = scripted{send: send, method: send.Method, url: send.URL, body: body, hasBody: hasBody && body != ""}
	named := map[string]bool{}
	var b strings.Builder
	for _, l := range lines[1:] {
		name, value, ok := strings.Cut(l, ":")
		value = strings.Trim(value, " \t")
		name = strings.ToLower(name)
		switch {
		case !ok || name == "" || strings.ContainsFunc(l, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
			continue
		case name == "content-length", name == "transfer-encoding", name == "connection", name == "expect", name == "host" && value == u.Host:
			continue // curl's own
		}
		named[name] = true
		if value == "" {
			b.WriteString(name + ";\n") // so curl sends an empty one
		} else {
			b.WriteString(name + ": " + value + "\n")
		}
	}
	// What curl would add.
	for _, name := range []string{"accept", "content-type", "user-agent", "expect"} {
		if !named[name] {
			b.WriteString(name + ":\n")
		}
	}
	q.header = b.String()
	return q, ""
}

// collect finds what is replaced in the requests.
func (s *reproduction) collect() {
	var all strings.Builder
	for _, q := range append(slices.Clone(s.sends), s.reads...) {
		all.WriteString(q.url + "\n" + q.header + "\n" + q.body + "\n")
	}
	text := all.String()
	for _, v := range s.e.Drawn {
		if drawnForm.MatchString(v) && strings.Contains(text, v) && !slices.Contains(s.drawn, v) {
			s.drawn = append(s.drawn, v)
		}
	}
	// A value that holds another goes first.
	slices.SortStableFunc(s.drawn, func(a, b string) int { return len(b) - len(a) })
	for _, p := range placeholder.FindAllString(text, -1) {
		if slices.ContainsFunc(s.secrets, func(x [2]string) bool { return x[0] == p }) {
			continue
		}
		name := "SECRET_" + strings.TrimPrefix(p, "redacted-")
		for _, n := range s.run.Secrets {
			if env, ok := strings.CutPrefix(n.From, "env "); n.Placeholder == p && ok && variable.MatchString(env) && !reserved[env] {
				name = env
			}
		}
		s.secrets = append(s.secrets, [2]string{p, name})
	}
}

// place says in which header of a request a placeholder stands: a part of what the
// plan names has no name of its own. Empty if it stands in none.
func (s *reproduction) place(p string) string {
	for _, q := range append(slices.Clone(s.sends), s.reads...) {
		for line := range strings.Lines(q.header) {
			if line = strings.TrimSpace(line); slices.Contains(placeholder.FindAllString(line, -1), p) && len(line) < maxName {
				return ", as in " + visible(line, maxName)
			}
		}
	}
	return ""
}

var headEnd = regexp.MustCompile(`\r?\n\r?\n`)

var drawnForm = regexp.MustCompile(`^[0-9a-f-]{6,200}$`)

// reserved are variables that a script, or the shell, has a use of its own for.
var reserved = map[string]bool{"PATH": true, "IFS": true, "HOME": true, "PS1": true, "PS2": true, "PS4": true, "ENV": true, "PWD": true, "TIMEOUT": true, "SETTLE": true, "TRIALS": true, "WIDTH": true, "CUT_AFTER": true, "dir": true}

// printf returns the arguments of printf that print a text, with what is
// replaced in it as %s: a format in single quotes, of printing ASCII alone.
func (s *reproduction) printf(text string) string {
	var format strings.Builder
	var args []string
	format.WriteByte('\'')
next:
	for i := 0; i < len(text); {
		for n, v := range s.drawn {
			if strings.HasPrefix(text[i:], v) {
				format.WriteString("%s")
				args = append(args, fmt.Sprintf(`"$v%d"`, n+1))
				i += len(v)
				continue next
			}
		}
		if p := placeholder.FindString(text[i:min(i+20, len(text))]); p != "" && strings.HasPrefix(text[i:], p) {
			if at := slices.IndexFunc(s.secrets, func(x [2]string) bool { return x[0] == p }); at >= 0 {
				format.WriteString("%s")
				args = append(args, `"$`+s.secrets[at][1]+`"`)
				i += len(p)
				continue next
			}
		}
		switch c := text[i]; {
		case c == '%':
			format.WriteString("%%")
		case c == '\\':
			format.WriteString(`\\`)
		case c == '\'' || c < ' ' || c >= 0x7f:
			fmt.Fprintf(&format, `\%03o`, c)
		default:
			format.WriteByte(c)
		}
		i++
	}
	format.WriteByte('\'')
	return strings.Join(append([]string{format.String()}, args...), " ")
}

// comment is a text that is safe behind a #.
func comment(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, visible(text, maxText/4))
}

func (s *reproduction) head(b *strings.Builder, about ...string) {
	b.WriteString("#!/bin/sh\n")
	for _, l := range append([]string{"semel probe, run " + s.run.ID + ", " + s.o.Name + ", " + s.f.Experiment + ": " + string(s.f.ID), s.f.Title + "."}, about...) {
		b.WriteString("# " + comment(l) + "\n")
	}
	b.WriteString("set -eu\n")
}

// bySemel is the script where curl cannot do it.
func (s *reproduction) bySemel(why string) string {
	var b strings.Builder
	s.head(&b, "This script does not use curl: "+why+".", "It uses the copy of the plan in the run's folder, or the plan given as its argument: give the original if it names files. It sends requests that have real effects on the target.")
	b.WriteString("operation=$(printf " + s.printf(s.o.Name) + ")\n")
	b.WriteString("experiment=$(printf " + s.printf(cmp.Or(s.f.Experiment, "duplicate")) + ")\n")
	b.WriteString(`plan=${1:-$(dirname -- "$0")/../` + PlanFile + `}` + "\n")
	b.WriteString(`exec semel probe run "$plan" --send --operation "$operation" --only "$experiment"` + "\n")
	return b.String()
}

// Parts of every script. ask sends request $1, called $2, and leaves what came
// back in files; told prints it, without what could steer a terminal.
const (
	scriptTools = `dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
umask 077
# fresh VALUE: another value of the same form.
fresh() {
	awk -v p="$1" -v random="$(od -An -v -N512 -tx1 /dev/urandom | tr -d ' \n')" 'BEGIN {
		if (p ~ /^[0-9]+$/) gsub(/[a-f]/, "", random)
		uuid = length(p) == 36 && p ~ /^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$/
		for (i = 1; i <= length(p); i++) {
			c = substr(p, i, 1)
			r = r (c == "-" || uuid && (i == 15 || i == 20) ? c : substr(random, i, 1))
		}
		print r
	}'
}
# ask FILES REQUEST METHOD URL [OPTION...]: sends a request.
ask() {
	to=$dir/$1 of=$dir/$2 method=$3 url=$4
	shift 4
	curl -q -sS -g --path-as-is --noproxy '*' --proto =http,https --max-time "${TIMEOUT:-30}" \
		-X "$method" -H "@$of.head" -o "$to.out" -w '%{http_code} in %{time_total} s' "$@" --url "$url" \
		>"$to.status" 2>"$to.error" || printf ' (no response: curl %s)' "$?" >>"$to.status"
}
# told FILES NAME: prints a response, as far as it is short.
told() {
	printf '%s: %s ' "$2" "$(cat "$dir/$1.status")"
	if [ -f "$dir/$1.out" ]; then
		dd bs=300 count=1 <"$dir/$1.out" 2>/dev/null | LC_ALL=C tr -c '[:print:]' ' '
		size=$(wc -c <"$dir/$1.out")
		if [ "$size" -gt 300 ]; then printf ' ... (%s bytes)' "$((size))"; fi
	fi
	printf '\n'
}
`
	scriptCount = `# holds FILES VALUE: how often a response holds a value.
holds() {
	if [ -f "$dir/$1.out" ]; then LC_ALL=C awk -v v="$2" '{ n += gsub(v, "") } END { print n + 0 }' "$dir/$1.out"; else echo '?'; fi
}
`
)

func (s *reproduction) byCurl() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	at, _ := url.Parse(cmp.Or(slices.Concat(s.sends, s.reads)[0].url))
	n := len(s.sends)
	about := []string{}
	race := s.e.Race
	width := 0
	if race != nil {
		width = min(max(race.Width, 2), 50)
		about = append(about, "curl does not release requests as closely together as the probe: if it shows nothing, raise TRIALS or WIDTH.")
		n *= width
	}
	about = append(about, fmt.Sprintf("It sends %s to %s, with real effects%s. It needs curl.", plural(n, "request", "requests"), at.Host, map[bool]string{true: ", and reads the state"}[len(s.reads) > 0]))
	for _, x := range s.secrets {
		about = append(about, x[1]+" must be set to what is "+x[0]+" in the evidence"+s.place(x[0])+".")
	}
	s.head(&b, about...)
	for _, x := range s.secrets {
		line(`: "${%s:?must be set}"`, x[1])
	}
	b.WriteString(scriptTools)
	if len(s.drawn) > 0 {
		b.WriteString(scriptCount)
	}

	line("# prepare draws fresh values and writes the requests to files.")
	line("prepare() {")
	for i, v := range s.drawn {
		line("\tv%d=$(fresh %s)", i+1, v)
	}
	for i, q := range slices.Concat(s.sends, s.reads) {
		id := s.id(i)
		line("\t%s=$(printf %s)", "url_"+id, s.printf(q.url))
		line("\tprintf %s >\"$dir/%s.head\"", s.printf(q.header), id)
		if q.hasBody {
			line("\tprintf %s >\"$dir/%s.body\"", s.printf(q.body), id)
		}
	}
	line("\t:")
	line("}")
	line("# state reads the state and prints it.")
	line("state() {")
	for i, q := range s.reads {
		id := s.id(len(s.sends) + i)
		line("\task read %s %s \"$url_%s\"", id, q.method, id)
		line("\ttold read \"state $1\"")
		for v := range s.drawn {
			line("\theld=$(holds read \"$v%d\")", v+1)
			line("\tif [ \"$held\" != 0 ]; then printf 'state %%s holds %%s %%s times; one effect may hold it more than once\\n' \"$1\" \"$v%d\" \"$held\"; fi", v+1)
		}
	}
	if len(s.reads) == 0 {
		why := "the plan has no reader that curl can query"
		if s.dropped {
			why = "the reader asks for an id that a response of the run gave"
		}
		line("\tprintf 'state %%s: %s\\n' \"$1\"", why)
	}
	line("}")

	switch {
	case len(s.sends) == 0:
		line("prepare\nstate now")
	case race != nil:
		line("trial=0")
		line("while [ \"$trial\" -lt \"${TRIALS:-3}\" ]; do")
		line("\ttrial=$((trial + 1)) n=0")
		line("\tprepare")
		line("\tstate \"before trial $trial\"")
		line("\twhile [ \"$n\" -lt \"${WIDTH:-%d}\" ]; do", width)
		line("\t\tn=$((n + 1))")
		line("\t\t%s &", s.ask(0, `"response_$n"`, ""))
		line("\tdone")
		line("\twait")
		line("\tn=0")
		line("\twhile [ \"$n\" -lt \"${WIDTH:-%d}\" ]; do n=$((n + 1)); told \"response_$n\" \"request $n\"; done", width)
		line("\tsleep \"${SETTLE:-1}\"")
		line("\tstate \"after trial $trial\"")
		line("done")
	default:
		line("prepare\nstate before")
		for i, q := range s.sends {
			if q.pause > 0 {
				line("sleep %d", q.pause)
			}
			to := fmt.Sprintf("response_%d", i+1)
			switch {
			case q.cut:
				line("# Do not wait for the response. In the run it took %s.", span(s.takes()))
				line("%s", s.ask(i, to, fmt.Sprintf(` --max-time "${CUT_AFTER:-%.3f}"`, max(s.takes()/2e6, 0.01))))
			case i+1 < len(s.sends) && s.sends[i+1].own:
				line("%s &", s.ask(i, to, ""))
				line("sleep %.3f 2>/dev/null || sleep 1", max(s.takes()/3e6, 0.01))
			default:
				line("%s", s.ask(i, to, ""))
				if q.own {
					line("wait")
				}
			}
		}
		for i, q := range s.sends {
			line("told response_%d %s", i+1, quoted(fmt.Sprintf("request %d, %s", i+1, comment(name(string(q.send.Role))))))
		}
		line("sleep \"${SETTLE:-1}\"\nstate after")
	}
	line("printf '%%s\\n' %s", quoted("The probe saw: "+comment(s.e.Why)))
	return b.String()
}

// quoted is a text of printing ASCII in single quotes.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// id names the files and variables of a request.
func (s *reproduction) id(i int) string {
	if i < len(s.sends) {
		return fmt.Sprintf("send_%d", i+1)
	}
	return fmt.Sprintf("read_%d", i-len(s.sends)+1)
}

func (s *reproduction) ask(i int, to, options string) string {
	q, id := s.sends[i], s.id(i)
	if q.hasBody {
		options += fmt.Sprintf(` --data-binary "@$dir/%s.body"`, id)
	}
	return fmt.Sprintf("ask %s %s %s \"$url_%s\"%s", to, id, q.method, id, options)
}

// takes is how many microseconds the operation took, by its fastest success.
func (s *reproduction) takes() float64 {
	takes := 0.0
	for _, e := range s.o.Experiments {
		for _, x := range e.Sends {
			if us := float64(x.FirstByteUS - x.LastWriteUS); (x.Role == evidence.RoleFirst || x.Role == evidence.RoleControl) && x.Status/100 == 2 && us > 0 && (takes == 0 || us < takes) {
				takes = us
			}
		}
	}
	return takes
}
