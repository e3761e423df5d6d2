package probe

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math"
	"math/big"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// The catalogue has no finding that is never made.
func TestFindingsAreMade(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				used[strings.ToLower(sel.Sel.Name)] = true
			}
			return true
		})
	}
	for _, e := range evidence.Catalogue() {
		if !used["finding"+strings.ReplaceAll(string(e.ID), "-", "")] {
			t.Errorf("nothing makes the finding %s", e.ID)
		}
	}
}

func at(ms int) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond)
}

func TestInFlight(t *testing.T) {
	for name, c := range map[string]struct {
		times [][2]int // last byte out, first byte in; -1 for never
		want  int
	}{
		"none":               {nil, 0},
		"one after another":  {[][2]int{{0, 5}, {6, 9}, {9, 12}}, 1},
		"two of three":       {[][2]int{{0, 5}, {4, 9}, {9, 12}}, 2},
		"all in one write":   {[][2]int{{1, 5}, {1, 6}, {1, 7}}, 3},
		"answered unseen":    {[][2]int{{0, 9}, {5, 4}, {6, 5}}, 2}, // the response was read before the write returned
		"never out":          {[][2]int{{0, 9}, {-1, 4}}, 1},
		"never answered":     {[][2]int{{0, 9}, {3, -1}}, 2},
		"answered as it was": {[][2]int{{0, 5}, {5, 8}}, 1},
	} {
		var all []*sent
		for _, x := range c.times {
			all = append(all, &sent{x: wire.Exchange{Timing: wire.Timing{LastWrite: at(x[0]), FirstByte: at(x[1])}}})
		}
		if got := inFlight(all); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func given(status int, body string, header ...string) *sent {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &sent{x: wire.Exchange{Delivery: wire.Answered, Response: &wire.Response{Status: status, Header: h, Body: []byte(body)}}}
}

// A request that was not processed is not a refusal.
func TestTurnedAway(t *testing.T) {
	for status, want := range map[int]bool{200: false, 409: false, 422: false, 429: true, 500: false, 502: false, 503: true} {
		if got := turnedAway(&given(status, "").x); got != want {
			t.Errorf("%d: %v", status, got)
		}
	}
	for d, want := range map[wire.Delivery]bool{wire.NotSent: true, wire.Partial: true, wire.Refused: true, wire.Unanswered: false} {
		if got := turnedAway(&wire.Exchange{Delivery: d}); got != want {
			t.Errorf("%s: %v", d, got)
		}
	}
}

func TestCompare(t *testing.T) {
	o := &operation{op: &plan.Operation{}}
	first := given(201, `{"id":"ord_7","at":1}`)
	for name, c := range map[string]struct {
		second *sent
		want   evidence.SecondClass
	}{
		"replay":                     {given(201, `{"id":"ord_7","at":1}`), evidence.SameResult},
		"the same as it is now":      {given(200, `{"id":"ord_7","at":2}`), evidence.SameResult},
		"another":                    {given(201, `{"id":"ord_8","at":1}`), evidence.DifferentResult},
		"refused":                    {given(409, `{"title":"duplicate"}`), evidence.Refused},
		"refused, with reference":    {given(409, `{"order":"ord_7"}`), evidence.RefusedWithReference},
		"refused, with its location": {given(409, ``, "Location", "/orders/ord_7"), evidence.RefusedWithReference},
		"refused, naming a longer":   {given(409, `{"order":"ord_77"}`), evidence.Refused},
		"server error":               {given(500, `{"order":"ord_7"}`), evidence.ErrorOrTimeout},
		"no response":                {&sent{}, evidence.ErrorOrTimeout},
	} {
		for _, s := range []*sent{first, c.second} {
			s.resource = o.resource(&s.x)
		}
		if got := o.compare(first, c.second).Class; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	slow := func(ms int) *sent {
		s := given(201, "")
		s.x.Timing = wire.Timing{LastWrite: at(0), FirstByte: at(ms)}
		return s
	}
	for _, c := range []struct {
		first, second int
		want          string
	}{{100, 10, "fast-as-a-replay"}, {100, 90, "slow-as-an-execution"}, {100, 50, "undecided"}, {1, 0, "undecided"}} {
		if got := o.compare(slow(c.first), slow(c.second)).Timing; got != c.want {
			t.Errorf("%v: %s", c, got)
		}
	}
}

// Differences are named by their place: values can be anything.
func TestDifferencesHoldNoValues(t *testing.T) {
	got := differences([]byte(`{"id":1,"card":{"number":"4242424242424242","kind":"x"}}`), []byte(`{"id":1,"card":{"number":"4000000000000002","kind":"x"},"new":true}`))
	if want := []string{"body /card/number", "body /new"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestLeaked(t *testing.T) {
	first := given(201, `{"id":"ord_7","token":"tok_1234567890"}`)
	first.resource = "ord_7"
	first.x.Request.Body = []byte(`{"ref":"reference-1","item":"green tea 1234","quantity":1}`)
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"nothing":                     {`{"title":"the key was used","retry":"no"}`, false},
		"the id of the resource":      {`{"title":"used","order":"ord_7"}`, false},
		"what the second itself says": {`{"ref":"reference-1","item":"black tea","quantity":3}`, false},
		"a value of the first":        {`{"was":"green tea 1234"}`, true},
		"a value of its response":     {`{"was":"tok_1234567890"}`, true},
		"the record":                  {`{"stored":{"ref":"reference-1","item":"green tea 1234","quantity":1}}`, true},
		"the record, short values":    {`{"stored":{"ref":"reference-1","quantity":1}}`, true},
	} {
		second := given(422, c.body)
		second.x.Request.Body = []byte(`{"ref":"reference-1","item":"black tea","quantity":3}`)
		if got := leaked(first, second); (got != "") != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for v, want := range map[string]time.Duration{"": 0, "2": 2 * time.Second, "-1": 0, "1.5": 0, "soon": 0, "999999999999": time.Hour} {
		if got := retryAfter(&given(429, "", "Retry-After", v).x); got != want {
			t.Errorf("%q: %v", v, got)
		}
	}
	date := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := retryAfter(&given(429, "", "Retry-After", date).x); got <= 50*time.Second || got > time.Minute {
		t.Errorf("%v", got)
	}
}

func TestNumber(t *testing.T) {
	for s, ok := range map[string]bool{"0": true, "-12.50": true, "1e3": true, "": false, "1/3": false, "0x10": false, "1e9999": false, "NaN": false, " 1": false} {
		if _, err := number(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// Confidence is zero without a control, and low after one clean race.
func TestConfidence(t *testing.T) {
	run := func(control bool, trials int, held ...plan.Experiment) float64 {
		o := &operation{op: &plan.Operation{Key: &plan.Key{}}}
		o.facts.outcomes = map[plan.Experiment]evidence.Outcome{}
		o.facts.control = control
		for _, e := range held {
			o.facts.outcomes[e] = evidence.Held
		}
		if trials > 0 {
			o.facts.race = &evidence.Race{Overlapped: trials, Bound: evidence.RateBound(0, trials)}
		}
		got, from := o.confidence()
		if len(from) != 2+len(weights) {
			t.Errorf("%d terms: %q", len(from), from)
		}
		return got
	}
	everything := make([]plan.Experiment, 0, len(weights))
	for _, w := range weights {
		everything = append(everything, w.of)
	}
	for _, c := range []struct{ got, want float64 }{
		{run(false, 60, everything...), 0},
		{run(true, 0), 0.20},
		{run(true, 0, plan.Duplicate), 0.40},
		{run(true, 1, plan.Duplicate, plan.RaceSame), 0.41},
		{run(true, 60, everything...), 0.99},
		{run(true, 100000, everything...), 1},
	} {
		if math.Abs(c.got-c.want) > 0.005 {
			t.Errorf("%.3f, want %.2f", c.got, c.want)
		}
	}
}

// A key that is sent as malformed is malformed in every known syntax.
func TestMalformed(t *testing.T) {
	if k := malformed(&plan.Key{Header: "Idempotency-Key", Syntax: "sf-string"}, "abc"); k != `"abc` {
		t.Errorf("%q", k)
	}
	for _, k := range []*plan.Key{{Header: "X-Key", Syntax: "bare"}, {Query: "k"}, {Body: "/k"}} {
		for _, key := range []string{"abc", strings.Repeat("k", 400)} {
			if got := malformed(k, key); len(got) <= 255 || got == key {
				t.Errorf("%d bytes", len(got))
			}
		}
	}
}

func TestEachLine(t *testing.T) {
	long := strings.Repeat("x", maxLine+5)
	var got []int
	if err := eachLine(strings.NewReader("a\n\n"+long+"\nend"), func(l []byte) { got = append(got, len(l)) }); err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 0, maxLine, 3}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// fakeDB is a database of one number.
type fakeDB struct {
	value    any
	readOnly bool // it knows such transactions
	began    []driver.TxOptions
	rolled   int
	args     []driver.Value
}

func (d *fakeDB) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d *fakeDB) Driver() driver.Driver                        { return nil }
func (d *fakeDB) Prepare(string) (driver.Stmt, error)          { return d, nil }
func (d *fakeDB) Close() error                                 { return nil }
func (d *fakeDB) Begin() (driver.Tx, error)                    { return d, nil }
func (d *fakeDB) Commit() error                                { return errors.New("a reader commits nothing") }
func (d *fakeDB) Rollback() error                              { d.rolled++; return nil }
func (d *fakeDB) NumInput() int                                { return -1 }

func (d *fakeDB) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly && !d.readOnly {
		return nil, errors.New("there is no such transaction")
	}
	d.began = append(d.began, o)
	return d, nil
}

func (d *fakeDB) Exec([]driver.Value) (driver.Result, error) {
	return nil, errors.New("a reader changes nothing")
}

func (d *fakeDB) Query(args []driver.Value) (driver.Rows, error) {
	d.args = args
	return &row{d.value}, nil
}

type row struct{ left any }

func (r *row) Columns() []string { return []string{"n", "ignored"} }
func (r *row) Close() error      { return nil }

func (r *row) Next(dest []driver.Value) error {
	if r.left == errNone {
		return io.EOF
	}
	dest[0], dest[1], r.left = r.left, "x", errNone
	return nil
}

var errNone = errors.New("none")

func TestQuery(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"integer": {int64(3), "3"}, "bytes": {[]byte("12.50"), "12.5"}, "float": {float64(1e6), "1000000"}, "text": {"7", "7"},
		"null": {nil, "0"}, "no number": {"seven", ""}, "no row": {errNone, ""},
	} {
		for _, readOnly := range []bool{true, false} {
			d := &fakeDB{value: c.value, readOnly: readOnly}
			r := &runner{
				p: &plan.Plan{Timing: plan.Timing{Timeout: time.Minute}}, dbs: map[string]*sql.DB{},
				o: Options{OpenSQL: func(context.Context, string, string) (*sql.DB, error) { return sql.OpenDB(d), nil }},
			}
			n, err := r.query(t.Context(), &plan.Reading{Reader: &plan.Reader{SQL: &plan.SQLReader{Driver: "x", Query: "q"}}, Args: []string{"a"}})
			if (err == nil) != (c.want != "") || err == nil && text(n) != c.want {
				t.Errorf("%s: %v %v", name, n, err)
			}
			if len(d.began) != 1 || d.began[0].ReadOnly != readOnly || d.rolled != 1 || len(d.args) != 1 {
				t.Errorf("%s: %+v", name, d)
			}
			r.close()
		}
	}
}

// The hypothesis that lost responses are treated differently needs a difference
// that was seen.
func TestSupposeLost(t *testing.T) {
	for name, c := range map[string]struct {
		findings []evidence.FindingID
		facts    facts
		want     evidence.CauseState // empty: it is not supposed
	}{
		"duplicates hold, lost ones double": {[]evidence.FindingID{evidence.FindingDoubleEffectLostResponse}, facts{once: true, lostAfter: true}, evidence.Supported},
		"the first may have been running":   {[]evidence.FindingID{evidence.FindingDoubleEffectLostResponse}, facts{once: true}, evidence.Open},
		"what is running is recognised":     {[]evidence.FindingID{evidence.FindingDoubleEffectLostResponse}, facts{once: true, inProgress: yes}, evidence.Supported},
		"what is running is executed again": {[]evidence.FindingID{evidence.FindingDoubleEffectRace, evidence.FindingDoubleEffectLostResponse}, facts{once: true}, ""},
		"so is what had its effect":         {[]evidence.FindingID{evidence.FindingDoubleEffectRace, evidence.FindingDoubleEffectLostResponse}, facts{once: true, lostAfter: true}, evidence.Supported},
		"duplicates were not tried":         {[]evidence.FindingID{evidence.FindingDoubleEffectLostResponse}, facts{}, evidence.Open},
		"both double":                       {[]evidence.FindingID{evidence.FindingDoubleEffectSequential, evidence.FindingDoubleEffectLostResponse}, facts{doubled: true}, ""},
		"both double, by ids":               {[]evidence.FindingID{evidence.FindingDoubleEffectSequential, evidence.FindingDoubleEffectLostResponse}, facts{}, ""},
		"a key is blocked":                  {[]evidence.FindingID{evidence.FindingDoubleEffectSequential, "failure-blocks-key"}, facts{doubled: true}, evidence.Open},
	} {
		o := &operation{op: &plan.Operation{}, facts: c.facts, r: &runner{p: &plan.Plan{}}}
		for _, id := range c.findings {
			e, _ := evidence.Lookup(id)
			o.ev.Findings = append(o.ev.Findings, e.Finding("lost_unread"))
		}
		o.suppose()
		got := evidence.CauseState("")
		for _, f := range o.ev.Findings {
			for _, cause := range f.Causes {
				if cause.Name == "tied-to-client" {
					got = cause.State
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A 2xx whose body reports an error is not a success.
func TestSuccess(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   bool
	}{
		"created":           {201, `{"id":1}`, true},
		"nothing":           {204, ``, true},
		"see other":         {303, ``, true},
		"refused":           {409, `{"id":1}`, false},
		"an error":          {200, `{"error":{"code":"ratelimited"}}`, false},
		"errors":            {200, `{"data":null,"errors":[{"message":"no"}]}`, false},
		"an error in words": {200, `{"error":"no"}`, false},
		"no error":          {200, `{"error":null,"errors":[],"id":1}`, true},
		"error: false":      {200, `{"error":false}`, true},
		"parts, one failed": {207, `<propstat><status>HTTP/1.1 412 Precondition Failed</status></propstat>`, false},
		"parts":             {207, `<propstat><status>HTTP/1.1 200 OK</status></propstat>`, true},
		"a page":            {200, `<p>error</p>`, true},
	} {
		if got := success(&given(c.status, c.body).x); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A status is read for the fate of a request that was accepted.
func TestFate(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   fate
	}{
		"accepted still":    {202, ``, fateRunning},
		"not there yet":     {404, ``, fateRunning},
		"elsewhere":         {303, ``, fateDone},
		"in progress":       {200, `{"status":"In Progress"}`, fateRunning},
		"done":              {200, `{"state":"SUCCEEDED"}`, fateDone},
		"failed":            {200, `{"status":"failed"}`, fateFailed},
		"the resource":      {200, `{"id":1}`, fateDone},
		"a word of its own": {200, `{"status":"blue"}`, fateUntold},
		"not allowed":       {403, ``, fateUntold},
		"broken":            {500, ``, fateUntold},
	} {
		got, why := fateOf(&given(c.status, c.body).x, (&plan.Plan{Operations: make([]plan.Operation, 1)}).WithDefaults().Operations[0].Poll)
		if got != c.want || (why != "") != (got == fateUntold) {
			t.Errorf("%s: %v, %s", name, got, why)
		}
	}
	own := &plan.Poll{State: new(plan.Pointer("/done")), Pending: []string{"false"}, Done: []string{"true"}}
	for body, want := range map[string]fate{`{"done":false}`: fateRunning, `{"done":true}`: fateDone, `{"done":null}`: fateUntold, `{}`: fateUntold, `no`: fateUntold} {
		if got, _ := fateOf(&given(200, body).x, own); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

// A change under a used key is held against the target as far as somebody said
// that it is refused.
func TestChangedUnderKey(t *testing.T) {
	for name, c := range map[string]struct {
		taken    known
		mismatch []int
		assumed  bool
		outcome  evidence.Outcome
		finding  evidence.FindingID
		priority evidence.Priority
	}{
		"made, and it is refused by contract":  {yes, []int{422}, false, evidence.Broken, "mismatch-executed", evidence.P1},
		"made, and that is assumed":            {yes, []int{422}, true, evidence.Broken, "mismatch-executed", evidence.P2},
		"made, and no contract says otherwise": {yes, nil, false, evidence.Held, "", ""},
		"not made":                             {no, nil, false, evidence.Broken, "mismatch-replayed-as-same", evidence.P1},
	} {
		o := &operation{op: &plan.Operation{Key: &plan.Key{}}, contract: plan.Contract{Mismatch: c.mismatch}, assumed: c.assumed}
		j := &judgement{o: o, e: &evidence.Experiment{Name: "altered"}}
		j.changedUnderKey(given(201, "{}"), given(200, "{}"), c.taken)
		var f evidence.Finding
		if len(o.ev.Findings) > 0 {
			f = o.ev.Findings[0]
		}
		if outcome, why := j.outcome(); outcome != c.outcome || f.ID != c.finding || f.Priority != c.priority || f.ID != "" && f.Basis != evidence.Established {
			t.Errorf("%s: %s: %s; %+v", name, outcome, why, f)
		}
	}
}

// A retry that got the first's result while that was under way, as seen from outside, is
// no handling of requests in progress where a race under one key has doubled.
func TestDoubledRaceHandlesNothingInProgress(t *testing.T) {
	for doubled, want := range map[int]string{0: "yes", 3: "no"} {
		o := &operation{op: &plan.Operation{}}
		o.facts.outcomes = map[plan.Experiment]evidence.Outcome{plan.RaceSame: evidence.Held}
		o.facts.inProgress = yes
		o.facts.race = &evidence.Race{Overlapped: 3, Doubled: doubled}
		if doubled > 0 {
			o.ev.Findings = []evidence.Finding{{ID: evidence.FindingDoubleEffectRace, Basis: evidence.Established}}
		}
		o.verdict()
		if got := o.ev.Verdict.InProgressHandling; got != want {
			t.Errorf("%d doubled: %s, want %s", doubled, got, want)
		}
	}
}

// A retry after a loss that was executed tells of loss alone if the first had had
// its effect, or had begun to answer, when it was sent.
func TestLostAfterTheEffect(t *testing.T) {
	two := &attempt{sent: given(201, "{}"), settled: true, total: delta{state: true, most: big.NewRat(2, 1), least: big.NewRat(2, 1)}}
	for name, c := range map[string]struct {
		try  lostTry
		want bool
	}{
		"nothing was seen of it": {lostTry{}, false},
		"it had had its effect":  {lostTry{ran: delta{state: true, most: big.NewRat(1, 1)}}, true},
		"it had begun to answer": {lostTry{begun: true}, true},
	} {
		c.try.first, c.try.second = given(0, ""), two
		o := &operation{op: &plan.Operation{}}
		(&judgement{o: o, e: &evidence.Experiment{Name: "lost_unread"}}).lost(&c.try, true)
		if o.facts.lostAfter != c.want || o.ev.Findings[0].ID != evidence.FindingDoubleEffectLostResponse {
			t.Errorf("%s: %t, %+v", name, o.facts.lostAfter, o.ev.Findings)
		}
	}
}

// If readers were read, no sentence says that none sees the state.
func TestByIDsSaysWhoLooked(t *testing.T) {
	for want, d := range map[string]delta{"no reader could be read": {}, "the readers were read": {looked: true}} {
		j := &judgement{o: &operation{op: &plan.Operation{}, readers: []*reader{{name: "rows"}}}, e: &evidence.Experiment{}}
		j.byIDs(evidence.FindingInFlightExecuted, d, given(201, "{}"), given(201, "{}"))
		if _, why := j.outcome(); !strings.HasPrefix(why, want) {
			t.Errorf("%+v: %s", d, why)
		}
	}
}
