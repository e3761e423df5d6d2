package probe

import (
	"math/big"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// known is the answer to a question about a target, as far as it was shown.
type known uint8

const (
	untold known = iota
	yes
	no
)

// facts are what the experiments on an operation have shown. Judging adds to
// them; experiments consult them to save requests.
type facts struct {
	outcomes map[plan.Experiment]evidence.Outcome

	control  bool // a state reader saw the effect of a fresh request
	controls int  // fresh requests that succeeded
	refused  bool // a request, the same again and a fresh one were refused; none has succeeded since
	names    bool // the response to a fresh request that took effect named a resource
	async    bool // a fresh request is answered with 202

	duplicate *evidence.Second
	once      bool // a duplicate had no effect of its own, by the state
	seemsOnce bool // the same, by the responses alone
	doubled   bool // it had one
	doubledBy []*sent
	sometimes bool // of several duplicates one had an effect, and one had none
	raceSome  bool // of requests at the same time that succeeded some had no effect of their own
	failed    bool // what was answered with a failure took effect again
	late      bool // a duplicate had an effect after a while, and none at once
	marked    bool // a replay said that it is one

	freshCreates known // under a fresh key the same body has an effect of its own
	noKeyRan     bool
	noKey        *sent
	keylessAsOne *sent // a request without a key that had no effect, after another one
	limited      bool  // a duplicate got 429
	actorApart   known
	tenantApart  known
	// operationApart: keys of one operation say nothing to another.
	operationApart known
	renewed        bool // what a step took for a principal was taken anew
	// signs of what decides between duplicates, and where they were found.
	signs       map[string][]string
	inProgress  known // a retry while the first ran was recognised
	lapsed      bool  // one was told to wait, and a later one was executed
	safeRetry   bool  // a retry after a loss or a failure was right
	unsafeRetry bool  // one was not, or was executed
	lostAfter   bool  // one after a loss was executed when the first had had its effect
	race        *evidence.Race
	outsideOK   int // experiments in which the outside saw what the state saw
	outsideBad  bool
	audit       string
	expires     bool // responses say until when a key is kept
	errors5xx   int
	specified   *specification
}

// protects reports whether a used key was seen to prevent a second effect.
func (f *facts) protects() known {
	switch {
	case f.once, f.seemsOnce && !f.doubled:
		return yes
	case f.doubled:
		return no
	}
	return untold
}

// sent is a request that was sent.
type sent struct {
	x        wire.Exchange
	n        int
	resource string
	replayed bool
	fate     fate   // of a request that was accepted with 202
	untold   string // why the fate is not told
	statusAt string // where it was asked
}

// over returns when the request was over.
func (s *sent) over() time.Time { return s.x.Timing.Done }

// processed reports whether there is a response, other than one that means that
// nothing was done or that the sender was not let in.
func (s *sent) processed() bool { return s.x.Response != nil && !turnedAway(&s.x) && !barred(s) }

// done reports whether the response says that it was done: at once, or in the
// end.
func (s *sent) done() bool {
	return success(&s.x) && (!accepted(&s.x) || s.fate == fateDone)
}

// succeeded reports whether the response is a success that nothing has
// contradicted since.
func (s *sent) succeeded() bool { return success(&s.x) && s.fate != fateFailed }

// status is that of the response, 0 without one.
func (s *sent) status() int {
	if s.x.Response == nil {
		return 0
	}
	return s.x.Response.Status
}

// serverError reports whether the response is a server's error.
func (s *sent) serverError() bool { return s.status() >= 500 }

// fate is what became of a request that was accepted with 202.
type fate uint8

const (
	fateUntold  fate = iota // nothing tells
	fateRunning             // its status says that it is not over yet
	fateDone
	fateFailed
)

// attempt is a request of an experiment, and what the readers saw when the
// state had settled after it.
type attempt struct {
	*sent
	// total is by how much the readers rose since the experiment's first
	// reading, own since the reading before this attempt.
	total, own delta
	settled    bool
	why        string   // it is not
	from, to   snapshot // the readings before and after
	waited     bool     // it was answered to be in progress, and sent again
}

// refresh counts again, because readers may have become sighted since.
func (a *attempt) refresh(w *watch) {
	if a != nil && a.to != nil {
		a.total, a.own = w.between(w.before, a.to), w.between(a.from, a.to)
	}
}

// opening is how an experiment begins: with a request of its own, and, if that
// did not succeed, the same again.
type opening struct {
	w     *watch
	first *attempt
	retry *attempt
	// planned: it is listed only, and counts as good.
	planned bool
	// alike: it was refused like an earlier one, and not sent again.
	alike bool
	// control is a fresh request beside it, sent if nothing else had shown that
	// effects can be seen.
	control *attempt
}

// good is the attempt that succeeded; nil if none did.
func (o *opening) good() *attempt {
	switch {
	case o.retry != nil && o.retry.succeeded():
		return o.retry
	case o.planned, o.retry == nil && o.first.succeeded():
		return o.first
	}
	return nil
}

// rise is by how many effects the number of a reader rose.
type rise struct {
	reader  string
	outside bool
	n       *big.Rat
}

// delta holds by how much the readers' numbers of effects rose since a
// snapshot.
type delta struct {
	state   bool // some reader of the target's own state can tell
	outside bool // some reader outside of it can
	looked  bool // some reader was read, whether or not it has seen an effect before
	// most and least effects that readers of a kind saw.
	most, least       *big.Rat
	outMost, outLeast *big.Rat
	// who saw the most.
	by, outBy string
	// sameID: what was doubled outside carries one delivery id.
	sameID bool
	all    []rise
}

// told reports whether some reader can tell.
func (d delta) told() bool { return d.state || d.outside }

// exceeds reports whether some reader saw more than n effects.
func (d delta) exceeds(n int64) bool { return more(d.most, n) || more(d.outMost, n) }

// number returns the largest number of effects seen in the state, or outside if
// nothing sees the state.
func (d delta) number() *big.Rat {
	if d.state {
		return d.most
	}
	return d.outMost
}

// apart reports whether readers of the target's own state disagree: one saw
// n effects, another one more.
func (d delta) apart(n int64) bool {
	return more(d.most, n) && d.least != nil && !more(d.least, n)
}

// String tells what each reader saw.
func (d delta) String() string {
	var list []string
	for _, r := range d.all {
		list = append(list, r.reader+": "+count(r.n))
	}
	return strings.Join(list, ", ")
}

// without says how it is known that a refusal had no effect.
func (d delta) without() string {
	if d.told() {
		return " and had no effect"
	}
	return "; that it had no effect is inferred from the response, because no reader sees the state"
}

func more(a *big.Rat, n int64) bool { return a != nil && a.Cmp(big.NewRat(n, 1)) > 0 }
func less(a *big.Rat, n int64) bool { return a != nil && a.Cmp(big.NewRat(n, 1)) < 0 }
func is(a *big.Rat, n int64) bool   { return a != nil && a.Cmp(big.NewRat(n, 1)) == 0 }

// sound reports whether an experiment can go on: a request succeeded, and its
// one effect was seen, or nothing can see any. Without an opening of its own, an
// experiment rests on an earlier one.
func (o *opening) sound(of *operation) bool {
	if o == nil || of.r.dry() {
		return true
	}
	a := o.good()
	switch {
	case a == nil || !a.settled:
		return false
	case len(of.readers) == 0:
		return true
	}
	d := a.total
	return d.told() && !d.exceeds(1) && !less(d.least, 1) && !less(d.outLeast, 1)
}
