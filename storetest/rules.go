package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

const (
	lease     = 15 * time.Second
	retention = 24 * time.Hour
)

// rules is the contract. Names say what holds; tests, documents and the table
// of skips refer to them.
var rules = []rule{
	{"one-claim-of-many", nil, oneClaimOfMany},
	{"one-claim-across-handles", []string{"open", "overlap"}, oneClaimAcrossHandles},
	{"one-claim-of-many-after-expiry", nil, oneClaimAfterExpiry},
	{"one-claim-of-many-at-release", nil, oneClaimAtRelease},
	{"scope-separates", nil, scopeSeparates},
	{"keys-are-bytes", nil, keysAreBytes},
	{"conflict-shows-the-record", []string{"lease"}, conflictShowsTheRecord},
	{"begin-repeats-with-its-token", []string{"lease"}, beginRepeats},
	{"absent-is-not-found", nil, absentIsNotFound},
	{"claim-context-descends", nil, claimContextDescends},
	{"claim-says-its-mode", nil, claimSaysItsMode},
	{"claim-outlives-its-begin", nil, claimOutlivesItsBegin},

	{"replay-is-exact", nil, replayIsExact},
	{"completed-is-seen-by-others", []string{"open", "overlap"}, completedIsSeenByOthers},
	{"complete-repeats", nil, completeRepeats},
	{"retention-starts-at-completion", []string{"overlap"}, retentionStartsAtCompletion},
	{"retention-is-kept", nil, retentionIsKept},
	{"expired-is-absent", []string{"lease"}, expiredIsAbsent},

	{"release-frees", nil, releaseFrees},
	{"completed-cannot-be-released", nil, completedCannotBeReleased},
	{"hold-blocks", []string{"lease"}, holdBlocks},
	{"held-claim-may-settle", []string{"lease"}, heldClaimMaySettle},
	{"unknown-is-not-renewed", []string{"lease"}, unknownIsNotRenewed},

	{"lapse-is-seen-not-granted", []string{"lease"}, lapseIsSeen},
	{"renew-extends-the-lease", []string{"lease"}, renewExtends},
	{"lapsed-claim-may-settle", []string{"lease"}, lapsedClaimMaySettle},
	{"store-clock-decides", []string{"lease", "skewed"}, storeClockDecides},
	{"takeover-needs-a-lapsed-lease", nil, takeoverNeedsLapse},
	{"takeover-needs-the-current-fence", []string{"lease"}, takeoverNeedsFence},
	{"takeover-keeps-the-record", []string{"lease"}, takeoverKeepsTheRecord},
	{"one-takeover-of-many", []string{"lease"}, oneTakeoverOfMany},
	{"late-write-or-takeover-not-both", []string{"lease"}, lateWriteOrTakeover},
	{"stale-claim-cannot-write", []string{"lease"}, staleClaimCannotWrite},
	{"fences-survive-deletion", nil, fencesSurviveDeletion},
	{"fences-rise-store-wide", []string{"overlap"}, fencesRise},
	{"claims-end-with-a-restore", []string{"lease", "backup"}, claimsEndWithARestore},

	{"resolve-as-unknown-keeps-the-claim", []string{"lease", "resolver"}, resolveUnknown},
	{"resolve-with-a-result", []string{"lease", "resolver"}, resolveResult},
	{"resolve-as-no-effect", []string{"lease", "resolver"}, resolveNoEffect},
	{"resolve-as-execute-again", []string{"lease", "resolver"}, resolveExecuteAgain},
	{"resolve-needs-a-mark-first", []string{"lease", "resolver"}, resolveNeedsMark},
	{"resolve-needs-the-current-fence", []string{"lease", "resolver"}, resolveNeedsFence},
	{"resolve-leaves-the-living-alone", []string{"lease", "resolver"}, resolveLeavesTheLiving},
	{"one-resolution-of-many", []string{"lease", "resolver"}, oneResolutionOfMany},

	{"sweep-removes-only-expired", []string{"lease", "sweeper"}, sweepOnlyExpired},
	{"sweep-is-bounded", []string{"sweeper"}, sweepIsBounded},
	{"sweep-spares-a-successor", []string{"lease", "sweeper"}, sweepSparesSuccessor},

	{"pieces-read-back", []string{"pieces"}, piecesReadBack},
	{"pieces-come-with-the-record", []string{"pieces"}, piecesComeWithTheRecord},
	{"pieces-outlast-an-ended-context", []string{"pieces"}, piecesOutlastAnEndedContext},
	{"pieces-have-their-sizes", []string{"pieces"}, piecesHaveTheirSizes},
	{"pieces-complete-repeats", []string{"pieces"}, piecesCompleteRepeats},
	{"pieces-need-the-claim", []string{"pieces", "lease"}, piecesNeedTheClaim},
	{"pieces-go-with-the-record", []string{"pieces"}, piecesGoWithTheRecord},
	{"pieces-are-swept", []string{"pieces", "sweeper"}, piecesAreSwept},
	{"pieces-resolve", []string{"pieces", "lease", "resolver"}, piecesResolve},

	{"erase-leaves-a-tombstone", []string{"eraser"}, eraseLeavesATombstone},
	{"erase-needs-the-record", []string{"eraser", "lease"}, eraseNeedsTheRecord},
	{"erase-takes-the-pieces", []string{"eraser", "pieces"}, eraseTakesThePieces},

	{"cancelled-context-is-obeyed", []string{"lease"}, cancelledContext},
	{"outage-fails-closed", []string{"lease", "break"}, outageFailsClosed},

	{"transaction-commits-both", []string{"transaction"}, transactionCommitsBoth},
	{"transaction-rolls-back", []string{"transaction"}, transactionRollsBack},
	{"transaction-ends-with-its-claim", []string{"transaction"}, transactionEnds},
	{"transaction-keeps-no-failed-effect", []string{"transaction"}, transactionKeepsNoFailedEffect},
	{"transaction-blocks-others", []string{"transaction"}, transactionBlocks},
	{"transaction-replaces-the-expired", []string{"transaction"}, transactionReplacesTheExpired},
	{"transaction-obeys-cancelled-context", []string{"transaction"}, transactionObeysContext},
	{"transaction-fails-closed-in-an-outage", []string{"transaction", "break"}, transactionFailsClosed},
	{"lost-commit-is-learned", []string{"transaction", "lost commit"}, lostCommitIsLearned},
	{"trail-commits-with-the-transaction", []string{"transaction", "trail"}, trailCommitsWithTransaction},

	{"list-filters-and-pages", []string{"lease", "lister"}, listFilters},
	{"list-by-cause-and-time", []string{"lease", "lister", "resolver"}, listCauses},
	{"trail-commits-with-the-record", []string{"lease", "trail"}, trailCommits},
	{"trail-tells-resolutions", []string{"lease", "trail", "resolver"}, trailResolutions},
	{"trail-notes-are-kept-in-order", []string{"trail"}, trailNotes},
	{"trail-filters-and-pages", []string{"trail"}, trailFilters},
}

func identity(key string) semel.Identity {
	return semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "orders.create"}, Key: key}
}

func fingerprint(s string) semel.Fingerprint { return semel.FingerprintOf([]byte(s)) }

func attempt(key string) semel.Attempt {
	return semel.NewAttempt(identity(key), fingerprint("request"), lease, retention)
}

func result(body string) semel.Result {
	return semel.Result{Codec: "test/1", Head: []byte("head of " + body), Body: []byte(body), Label: "201"}
}

func (h Harness) advance(d time.Duration) {
	if h.Advance != nil {
		h.Advance(d)
		return
	}
	time.Sleep(d) // in a bubble: virtual
}

func begin(t testing.TB, ctx context.Context, s semel.Store, a semel.Attempt) semel.Claim {
	t.Helper()
	c, err := s.Begin(ctx, a)
	if err != nil {
		t.Fatalf("Begin: %v; want a claim", err)
	}
	if c.RecordID() == "" || c.Fence() == 0 {
		t.Fatalf("Begin granted record %q, fence %d; want both set", c.RecordID(), c.Fence())
	}
	return c
}

// blocked asserts that Begin is refused and returns the record in the way.
func blocked(t testing.TB, ctx context.Context, s semel.Store, a semel.Attempt, want semel.State) semel.Record {
	t.Helper()
	_, err := s.Begin(ctx, a)
	conflict, ok := errors.AsType[*semel.ConflictError](err)
	if !ok {
		t.Fatalf("Begin: %v; want a ConflictError", err)
	}
	if conflict.Record.State != want {
		t.Fatalf("the record in the way is %v; want %v", conflict.Record.State, want)
	}
	return conflict.Record
}

func find(t testing.TB, ctx context.Context, s semel.Store, id semel.Identity) semel.Record {
	t.Helper()
	r, err := s.Find(ctx, id)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	return r
}

func complete(t testing.TB, ctx context.Context, c semel.Claim, r semel.Result) time.Time {
	t.Helper()
	expires, err := c.Complete(ctx, r)
	if err != nil {
		t.Fatalf("Complete: %v", err)
	}
	return expires
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v; want %v", what, err, want)
	}
}

// lost asserts that every write by c is refused and leaves the record of id
// as it is.
func lost(t testing.TB, ctx context.Context, s semel.Store, c semel.Claim, id semel.Identity) {
	t.Helper()
	before, errBefore := s.Find(ctx, id)
	_, err := c.Complete(ctx, result("from a zombie"))
	wantErr(t, "Complete by a stale claim", err, semel.ErrLostClaim)
	wantErr(t, "Renew by a stale claim", c.Renew(ctx), semel.ErrLostClaim)
	wantErr(t, "Hold by a stale claim", c.Hold(ctx, "zombie"), semel.ErrLostClaim)
	wantErr(t, "Release by a stale claim", c.Release(ctx), semel.ErrLostClaim)
	after, errAfter := s.Find(ctx, id)
	if errors.Is(errBefore, semel.ErrNotFound) != errors.Is(errAfter, semel.ErrNotFound) {
		t.Fatalf("a stale claim changed whether there is a record: before %v, after %v", errBefore, errAfter)
	}
	if before.State != after.State || before.Fence != after.Fence || !bytes.Equal(before.Result.Body, after.Result.Body) {
		t.Fatalf("a stale claim changed the record from %v fence %d to %v fence %d",
			before.State, before.Fence, after.State, after.Fence)
	}
}

// race runs n calls at once and returns the claims granted. Every other call
// must be a conflict with a record in progress.
func race(t testing.TB, n int, call func(i int) (semel.Claim, error)) []semel.Claim {
	t.Helper()
	var (
		mu      sync.Mutex
		granted []semel.Claim
		wrong   []error
		start   = make(chan struct{})
		wg      sync.WaitGroup
	)
	for i := range n {
		wg.Go(func() {
			<-start
			c, err := call(i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted = append(granted, c)
			} else if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || conflict.Record.State != semel.StateInProgress {
				wrong = append(wrong, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(wrong) > 0 {
		t.Fatalf("%d of %d losers got another answer than a conflict with a record in progress, such as: %v", len(wrong), n, wrong[0])
	}
	return granted
}

func wantOne(t testing.TB, granted []semel.Claim) semel.Claim {
	t.Helper()
	if len(granted) != 1 {
		t.Fatalf("%d claims were granted; want 1", len(granted))
	}
	return granted[0]
}

// Of any number of concurrent claims, at most one is granted.
func oneClaimOfMany(t testing.TB, h Harness, ctx context.Context) {
	for round := range 8 {
		key := fmt.Sprint("raced", round)
		c := wantOne(t, race(t, 32, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt(key)) }))
		complete(t, ctx, c, result("once"))
	}
}

func oneClaimAcrossHandles(t testing.TB, h Harness, ctx context.Context) {
	handles := []semel.Store{h.Store, h.Open(), h.Open()}
	for round := range 4 {
		key := fmt.Sprint("raced", round)
		c := wantOne(t, race(t, 30, func(i int) (semel.Claim, error) {
			return handles[i%len(handles)].Begin(ctx, attempt(key))
		}))
		complete(t, ctx, c, result("once"))
	}
}

func oneClaimAfterExpiry(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("old"))
	h.advance(retention + time.Second)
	wantOne(t, race(t, 16, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt("k")) }))
}

// A record that goes away between a refused insert and the look at what is in
// the way is no leave to proceed.
func oneClaimAtRelease(t testing.TB, h Harness, ctx context.Context) {
	for round := range 8 {
		key := fmt.Sprint("freed", round)
		first := begin(t, ctx, h.Store, attempt(key))
		var (
			wg       sync.WaitGroup
			released error
		)
		wg.Go(func() { released = first.Release(ctx) })
		granted := race(t, 16, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt(key)) })
		wg.Wait()
		must(t, "Release", released)
		if len(granted) > 1 {
			t.Fatalf("%d claims were granted at a release; want at most 1", len(granted))
		}
		for _, c := range granted {
			complete(t, ctx, c, result("once"))
		}
	}
}

// The same key under another scope is another identity, and parts do not run
// into each other.
func scopeSeparates(t testing.TB, h Harness, ctx context.Context) {
	ids := []semel.Identity{
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t2", Actor: "a", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a2", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op2"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "k2"},
		{Scope: semel.Scope{Tenant: "", Actor: "ta", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "ta", Actor: "", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "", Operation: "aop"}, Key: "k"},
	}
	for _, sep := range []string{":", "/", "|", ".", "-", ",", "#", " "} {
		ids = append(ids,
			semel.Identity{Scope: semel.Scope{Tenant: "t" + sep + "a", Actor: "b", Operation: "op"}, Key: "k"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a" + sep + "b", Operation: "op"}, Key: "k"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op" + sep + "x"}, Key: "y"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "x" + sep + "y"},
		)
	}
	for i, id := range ids {
		c := begin(t, ctx, h.Store, semel.NewAttempt(id, semel.Fingerprint{}, lease, retention))
		complete(t, ctx, c, result(fmt.Sprint("of ", i)))
	}
	for i, id := range ids {
		if got := string(find(t, ctx, h.Store, id).Result.Body); got != fmt.Sprint("of ", i) {
			t.Fatalf("identity %d reads %q", i, got)
		}
	}
}

// Identities are compared byte by byte: no case folding, trimming,
// normalisation or truncation.
func keysAreBytes(t testing.TB, h Harness, ctx context.Context) {
	long := strings.Repeat("x", semel.MaxKeyBytes-1)
	keys := []string{
		"k", "K", "k ", " k", "é", "e\u0301", "k%", "k_", `k"`, `k\`, "k'", "ключ", "🔑", long + "1", long + "2",
	}
	// One part at a time, so that no other part tells the identities apart.
	parts := map[string]func(id *semel.Identity) *string{
		"tenant": func(id *semel.Identity) *string { return &id.Tenant },
		"actor":  func(id *semel.Identity) *string { return &id.Actor },
		"key":    func(id *semel.Identity) *string { return &id.Key },
	}
	for name, part := range parts {
		for _, k := range keys {
			id := identity("bytes of the " + name)
			*part(&id) = k
			c := begin(t, ctx, h.Store, semel.NewAttempt(id, semel.Fingerprint{}, lease, retention))
			complete(t, ctx, c, result(k))
			if r := find(t, ctx, h.Store, id); r.Identity != id || string(r.Result.Body) != k {
				t.Fatalf("%s %q reads back as %+v", name, k, r.Identity)
			}
		}
	}
}

func conflictShowsTheRecord(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "req-1", EventID: "ev-1", TraceID: "trace-1"}
	c := begin(t, ctx, h.Store, a)
	second := attempt("k")
	second.Fingerprint = fingerprint("another request")
	r := blocked(t, ctx, h.Store, second, semel.StateInProgress)
	for _, r := range []semel.Record{r, find(t, ctx, h.Store, identity("k"))} {
		if r.Fingerprint != a.Fingerprint || r.ID != c.RecordID() || r.Fence != c.Fence() ||
			r.Identity != a.Identity || r.Origin != a.Origin || r.Retention != retention {
			t.Fatalf("the record does not show the claim it holds: %+v", r)
		}
		if r.Lease <= lease-10*time.Second || r.Lease > lease || r.Lapsed() || r.Reopened || r.BegunAt.IsZero() ||
			!r.SettledAt.IsZero() || !r.ExpiresAt.IsZero() {
			t.Fatalf("the record's times are wrong for a fresh claim: %+v", r)
		}
	}
}

// Begin whose answer was lost can be asked again.
func beginRepeats(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	first := begin(t, ctx, h.Store, a)
	again := begin(t, ctx, h.Store, a)
	if first.Fence() != again.Fence() || first.RecordID() != again.RecordID() {
		t.Fatalf("the same token was granted fence %d and then %d", first.Fence(), again.Fence())
	}
	h.advance(lease - 5*time.Second)
	begin(t, ctx, h.Store, a)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); r.Lease < lease-4*time.Second {
		t.Fatalf("a repeated Begin left %v of a lease of %v; want it renewed", r.Lease, lease)
	}
	complete(t, ctx, again, result("done"))
	blocked(t, ctx, h.Store, a, semel.StateCompleted)

	// So can one that took the record over.
	a = attempt("k2")
	a.Takeover = begin(t, ctx, h.Store, attempt("k2")).Fence()
	h.advance(2 * lease)
	first = begin(t, ctx, h.Store, a)
	again = begin(t, ctx, h.Store, a)
	if first.Fence() != again.Fence() || first.RecordID() != again.RecordID() {
		t.Fatalf("the same takeover was granted fence %d and then %d", first.Fence(), again.Fence())
	}
	must(t, "Hold", again.Hold(ctx, "lost contact"))
	blocked(t, ctx, h.Store, a, semel.StateUnknown)
}

func absentIsNotFound(t testing.TB, h Harness, ctx context.Context) {
	_, err := h.Store.Find(ctx, identity("nobody"))
	wantErr(t, "Find", err, semel.ErrNotFound)
}

// A handler sees its caller's values and cancellation.
func claimContextDescends(t testing.TB, h Harness, ctx context.Context) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(ctx, key{}, "value"))
	defer cancel()
	c := begin(t, ctx, h.Store, attempt("k"))
	child := c.Context(parent)
	if child.Value(key{}) != "value" {
		t.Fatalf("the claim's context holds %v; want its parent's value", child.Value(key{}))
	}
	must(t, "the claim's context", child.Err())
	cancel()
	wantErr(t, "the claim's context after its parent was cancelled", child.Err(), context.Canceled)
	complete(t, ctx, c, result("done"))
}

// A guard keeps answers back by this until the commit.
func claimSaysItsMode(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	if got := c.Transactional(); got != h.Transactional {
		t.Fatalf("Transactional is %t; the harness says %t", got, h.Transactional)
	}
	complete(t, ctx, c, result("done"))
}

// What was claimed does not depend on the request that claimed it.
func claimOutlivesItsBegin(t testing.TB, h Harness, ctx context.Context) {
	for _, settle := range []func(c semel.Claim) error{
		func(c semel.Claim) error { _, err := c.Complete(ctx, result("done")); return err },
		func(c semel.Claim) error { return c.Release(ctx) },
	} {
		request, cancel := context.WithCancel(ctx)
		c := begin(t, request, h.Store, attempt("k"))
		cancel()
		must(t, "Renew after the context of Begin was cancelled", c.Renew(ctx))
		if h.Effect != nil {
			must(t, "a handler's effect after the context of Begin was cancelled", h.Effect(c.Context(ctx)))
		}
		must(t, "to settle a claim after the context of Begin was cancelled", settle(c))
		h.advance(retention + time.Second)
	}
}

// Replay is exact.
func replayIsExact(t testing.TB, h Harness, ctx context.Context) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	results := map[string]semel.Result{
		"empty":     {Codec: "test/1"},
		"no body":   {Codec: "test/1", Head: []byte("204"), Label: "204"},
		"binary":    {Codec: "test/1", Head: all, Body: slices.Concat(all, all), Label: "200"},
		"tombstone": {Codec: "test/1", Tombstone: true, Reference: "/orders/1?a=b&c=ü", Label: "201"},
		"large":     {Codec: "test/1", Head: bytes.Repeat([]byte("h"), 8<<10), Body: bytes.Repeat([]byte("body"), 64<<10)},
		"not UTF-8": {Codec: "test/1", Head: []byte{0xff, 0, 0xfe}, Body: []byte{0xc3, 0x28}},
	}
	for name, want := range results {
		c := begin(t, ctx, h.Store, attempt(name))
		complete(t, ctx, c, want)
		seen := blocked(t, ctx, h.Store, attempt(name), semel.StateCompleted)
		for _, r := range []semel.Record{seen, find(t, ctx, h.Store, identity(name))} {
			got := r.Result
			if got.Codec != want.Codec || !bytes.Equal(got.Head, want.Head) || !bytes.Equal(got.Body, want.Body) ||
				got.Label != want.Label || got.Tombstone != want.Tombstone || got.Reference != want.Reference {
				t.Fatalf("%s: the result reads back with codec %q, %d head and %d body bytes, label %q, tombstone %v, reference %q",
					name, got.Codec, len(got.Head), len(got.Body), got.Label, got.Tombstone, got.Reference)
			}
			if r.SettledAt.IsZero() || !r.ExpiresAt.Equal(r.SettledAt.Add(retention)) {
				t.Fatalf("%s: settled at %v, expires at %v; want %v later", name, r.SettledAt, r.ExpiresAt, retention)
			}
		}
	}
}

func completedIsSeenByOthers(t testing.TB, h Harness, ctx context.Context) {
	other := h.Open()
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("mine"))
	if r := blocked(t, ctx, other, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "mine" {
		t.Fatalf("another handle reads %q", r.Result.Body)
	}
	c := begin(t, ctx, other, attempt("k2"))
	blocked(t, ctx, h.Store, attempt("k2"), semel.StateInProgress)
	complete(t, ctx, c, result("theirs"))
	if r := find(t, ctx, h.Store, identity("k2")); string(r.Result.Body) != "theirs" {
		t.Fatalf("the first handle reads %q", r.Result.Body)
	}
}

func completeRepeats(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	first := complete(t, ctx, c, result("done"))
	if r := find(t, ctx, h.Store, identity("k")); !first.Equal(r.ExpiresAt) {
		t.Fatalf("Complete answered %v, though the record expires at %v", first, r.ExpiresAt)
	}
	h.advance(time.Hour)
	r := find(t, ctx, h.Store, identity("k"))
	if again := complete(t, ctx, c, result("something else")); !again.Equal(r.ExpiresAt) {
		t.Fatalf("the second Complete answered %v, though the record expires at %v", again, r.ExpiresAt)
	}
	if got := find(t, ctx, h.Store, identity("k")); !got.ExpiresAt.Equal(r.ExpiresAt) ||
		!got.SettledAt.Equal(r.SettledAt) || string(got.Result.Body) != "done" {
		t.Fatalf("the second Complete changed the record: %+v", got)
	}
}

// Retention starts at completion.
func retentionStartsAtCompletion(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(retention - time.Minute)
	complete(t, ctx, c, result("late"))
	h.advance(retention - time.Minute)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func retentionIsKept(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("kept"))
	h.advance(retention - time.Minute)
	if s, ok := h.Store.(semel.Sweeper); ok {
		n, err := s.Sweep(ctx, 100)
		must(t, "Sweep", err)
		if n != 0 {
			t.Fatalf("Sweep removed %d records before their time", n)
		}
	}
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "kept" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

// Expired but unswept is absent.
func expiredIsAbsent(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin.RequestID = "first"
	old := begin(t, ctx, h.Store, a)
	complete(t, ctx, old, semel.Result{Codec: "test/1", Body: []byte("old"), Reference: "/old", Tombstone: true})
	h.advance(retention) // and not a moment longer
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find of an expired record", err, semel.ErrNotFound)
	_, err = old.Complete(ctx, result("again"))
	wantErr(t, "Complete of an expired record", err, semel.ErrLostClaim)

	b := attempt("k")
	b.Fingerprint = fingerprint("another request")
	c := begin(t, ctx, h.Store, b)
	if c.Fence() <= old.Fence() || c.RecordID() == old.RecordID() {
		t.Fatalf("the successor has record %s fence %d; the expired one had %s and %d", c.RecordID(), c.Fence(), old.RecordID(), old.Fence())
	}
	lost(t, ctx, h.Store, old, identity("k"))
	r := find(t, ctx, h.Store, identity("k"))
	if r.Fingerprint != b.Fingerprint || r.Result.Reference != "" || r.Result.Tombstone || len(r.Result.Body) > 0 ||
		!r.SettledAt.IsZero() || r.Origin != b.Origin {
		t.Fatalf("the successor inherited from the expired record: %+v", r)
	}
}

func releaseFrees(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Release", c.Release(ctx))
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find of a released record", err, semel.ErrNotFound)
	lost(t, ctx, h.Store, c, identity("k"))
	begin(t, ctx, h.Store, attempt("k"))
}

func completedCannotBeReleased(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	complete(t, ctx, c, result("done"))
	wantErr(t, "Release after Complete", c.Release(ctx), semel.ErrLostClaim)
	wantErr(t, "Hold after Complete", c.Hold(ctx, "too late"), semel.ErrLostClaim)
	wantErr(t, "Renew after Complete", c.Renew(ctx), semel.ErrLostClaim)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func holdBlocks(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "the line went dead"))
	must(t, "Hold again", c.Hold(ctx, "the line went dead"))
	r := blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
	if r.Cause != "the line went dead" || r.Fence != c.Fence() || r.SettledAt.IsZero() || !r.ExpiresAt.IsZero() ||
		r.Fingerprint != fingerprint("request") || r.Lease > 0 {
		t.Fatalf("the held record reads %+v", r)
	}
	h.advance(10 * retention)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
}

// While unknown and unresolved, the same claim may settle it.
func heldClaimMaySettle(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	complete(t, ctx, c, result("after all"))
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); r.Cause != "" || string(r.Result.Body) != "after all" {
		t.Fatalf("the settled record reads %+v", r)
	}
	c = begin(t, ctx, h.Store, attempt("k2"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	must(t, "Release of a held record", c.Release(ctx))
	begin(t, ctx, h.Store, attempt("k2"))
}

func unknownIsNotRenewed(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	wantErr(t, "Renew of an unknown record", c.Renew(ctx), semel.ErrLostClaim)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
}

func lapseIsSeen(t testing.TB, h Harness, ctx context.Context) {
	begin(t, ctx, h.Store, attempt("k"))
	h.advance(lease - 5*time.Second)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); r.Lapsed() {
		t.Fatalf("the lease lapsed 5 s early: %v left", r.Lease)
	}
	h.advance(10 * time.Second)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); !r.Lapsed() || r.Lease > -5*time.Second {
		t.Fatalf("the lease has %v left 5 s after it lapsed", r.Lease)
	}
	h.advance(2 * retention)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
}

func renewExtends(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	for range 3 {
		h.advance(lease - 5*time.Second)
		must(t, "Renew", c.Renew(ctx))
	}
	r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
	if r.Lapsed() || r.Lease > lease || r.Lease < lease-4*time.Second || r.Fence != c.Fence() {
		t.Fatalf("after Renew the lease has %v left, fence %d; want %v, %d", r.Lease, r.Fence, lease, c.Fence())
	}
}

// A lapsed lease alone loses nothing.
func lapsedClaimMaySettle(t testing.TB, h Harness, ctx context.Context) {
	settle := map[string]func(semel.Claim) error{
		"complete": func(c semel.Claim) error { _, err := c.Complete(ctx, result("late")); return err },
		"release":  func(c semel.Claim) error { return c.Release(ctx) },
		"hold":     func(c semel.Claim) error { return c.Hold(ctx, "late") },
		"renew":    func(c semel.Claim) error { return c.Renew(ctx) },
	}
	for name, call := range settle {
		c := begin(t, ctx, h.Store, attempt(name))
		h.advance(2 * lease)
		must(t, name+" after the lease lapsed", call(c))
	}
}

// The store's clock decides, never the caller's.
func storeClockDecides(t testing.TB, h Harness, ctx context.Context) {
	begin(t, ctx, h.Store, attempt("running"))
	complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
	for _, skew := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		off := h.Skewed(skew)
		if r := blocked(t, ctx, off, attempt("running"), semel.StateInProgress); r.Lapsed() || r.Lease > lease {
			t.Fatalf("a caller whose clock is off by %v sees %v of a lease of %v", skew, r.Lease, lease)
		}
		blocked(t, ctx, off, attempt("done"), semel.StateCompleted)

		key := fmt.Sprint("from ", skew)
		c := begin(t, ctx, off, attempt(key))
		if r := blocked(t, ctx, h.Store, attempt(key), semel.StateInProgress); r.Lapsed() || r.Lease > lease {
			t.Fatalf("a claim by a caller whose clock is off by %v has %v left of %v", skew, r.Lease, lease)
		}
		must(t, "Renew", c.Renew(ctx))
		complete(t, ctx, c, result("done"))
		h.advance(retention - time.Minute)
		blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
		h.advance(2 * time.Minute)
		if _, err := h.Store.Find(ctx, identity(key)); !errors.Is(err, semel.ErrNotFound) {
			t.Fatalf("a record completed by a caller whose clock is off by %v outlived its retention: %v", skew, err)
		}
		complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
		takeover := attempt("running")
		takeover.Takeover = find(t, ctx, h.Store, identity("running")).Fence
		begin(t, ctx, h.Store, takeover)
	}
}

func takeoverNeedsLapse(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	a := attempt("k")
	a.Takeover = c.Fence()
	blocked(t, ctx, h.Store, a, semel.StateInProgress)
	must(t, "Renew by the owner", c.Renew(ctx))
	complete(t, ctx, c, result("mine"))
	blocked(t, ctx, h.Store, a, semel.StateCompleted)
	h.advance(2 * lease) // a completed record has no lease that could lapse
	if r := blocked(t, ctx, h.Store, a, semel.StateCompleted); string(r.Result.Body) != "mine" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

func takeoverNeedsFence(t testing.TB, h Harness, ctx context.Context) {
	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = first.Fence()
	second := begin(t, ctx, h.Store, a)
	if second.Fence() <= first.Fence() {
		t.Fatalf("a takeover got fence %d after %d", second.Fence(), first.Fence())
	}
	h.advance(2 * lease)
	for _, wrong := range []uint64{0, first.Fence(), second.Fence() - 1, second.Fence() + 1} {
		late := attempt("k")
		late.Takeover = wrong
		if r := blocked(t, ctx, h.Store, late, semel.StateInProgress); r.Fence != second.Fence() {
			t.Fatalf("a refused takeover moved the fence from %d to %d", second.Fence(), r.Fence)
		}
	}
}

func takeoverKeepsTheRecord(t testing.TB, h Harness, ctx context.Context) {
	for _, held := range []bool{false, true} {
		key := fmt.Sprint("held ", held)
		first := begin(t, ctx, h.Store, attempt(key))
		if held {
			must(t, "Hold", first.Hold(ctx, "lost contact"))
		} else {
			h.advance(2 * lease)
		}
		a := attempt(key)
		a.Takeover, a.Origin.RequestID = first.Fence(), "the second"
		a.Fingerprint = fingerprint("another request") // the guard never does; the record must not follow
		c := begin(t, ctx, h.Store, a)
		r := find(t, ctx, h.Store, identity(key))
		if r.ID != first.RecordID() || c.RecordID() != r.ID || r.Fence != c.Fence() || r.State != semel.StateInProgress ||
			r.Lapsed() || r.Cause != "" || r.Fingerprint != fingerprint("request") || r.Origin != a.Origin || !r.SettledAt.IsZero() {
			t.Fatalf("the record after a takeover (held: %v) reads %+v", held, r)
		}
		lost(t, ctx, h.Store, first, identity(key))
		complete(t, ctx, c, result("by the second"))
		if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != "by the second" || r.Fingerprint != fingerprint("request") {
			t.Fatalf("the completed record reads %+v", r)
		}
	}
}

func oneTakeoverOfMany(t testing.TB, h Harness, ctx context.Context) {
	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	c := wantOne(t, race(t, 32, func(int) (semel.Claim, error) {
		a := attempt("k")
		a.Takeover = first.Fence()
		return h.Store.Begin(ctx, a)
	}))
	lost(t, ctx, h.Store, first, identity("k"))
	complete(t, ctx, c, result("once"))
}

// The owner's last write and a takeover at the same moment: whichever comes
// first shuts the other out, or leaves it a claim of its own.
func lateWriteOrTakeover(t testing.TB, h Harness, ctx context.Context) {
	late := map[string]func(c semel.Claim) error{
		"complete": func(c semel.Claim) error { _, err := c.Complete(ctx, result("late")); return err },
		"release":  func(c semel.Claim) error { return c.Release(ctx) },
		"hold":     func(c semel.Claim) error { return c.Hold(ctx, "late") },
		"renew":    func(c semel.Claim) error { return c.Renew(ctx) },
	}
	for name, write := range late {
		for round := range 4 {
			key := fmt.Sprint(name, round)
			zombie := begin(t, ctx, h.Store, attempt(key))
			h.advance(2 * lease)
			a := attempt(key)
			a.Takeover = zombie.Fence()
			var (
				wg       sync.WaitGroup
				writeErr error
				taker    semel.Claim
				beginErr error
			)
			wg.Go(func() { writeErr = write(zombie) })
			wg.Go(func() { taker, beginErr = h.Store.Begin(ctx, a) })
			wg.Wait()
			if writeErr != nil && !errors.Is(writeErr, semel.ErrLostClaim) {
				t.Fatalf("%s beside a takeover: %v", name, writeErr)
			}
			// A record that was held or released first can still be taken
			// over or claimed; one that was completed or renewed cannot.
			excludes := name == "complete" || name == "renew"
			if beginErr != nil {
				if _, ok := errors.AsType[*semel.ConflictError](beginErr); !ok || writeErr != nil || !excludes {
					t.Fatalf("a takeover beside %s failed: %v; the other: %v", name, beginErr, writeErr)
				}
				continue
			}
			if writeErr == nil && excludes {
				t.Fatalf("both %s and a takeover of the same claim were granted", name)
			}
			lost(t, ctx, h.Store, zombie, identity(key))
			complete(t, ctx, taker, result("the owner's"))
			if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != "the owner's" {
				t.Fatalf("after a takeover beside %s the record reads %q", name, r.Result.Body)
			}
		}
	}
}

// A zombie can neither overwrite a result nor free a claim.
func staleClaimCannotWrite(t testing.TB, h Harness, ctx context.Context) {
	first := attempt("k")
	zombie := begin(t, ctx, h.Store, first)
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = zombie.Fence()
	owner := begin(t, ctx, h.Store, a)
	lost(t, ctx, h.Store, zombie, identity("k"))
	blocked(t, ctx, h.Store, first, semel.StateInProgress)
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "the owner's" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

// The ABA of fences: a claim must stay stale after the record was deleted and
// claimed anew.
func fencesSurviveDeletion(t testing.TB, h Harness, ctx context.Context) {
	zombie := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Release", zombie.Release(ctx))
	owner := begin(t, ctx, h.Store, attempt("k"))
	if owner.Fence() <= zombie.Fence() {
		t.Fatalf("after a deletion the fence went from %d to %d", zombie.Fence(), owner.Fence())
	}
	lost(t, ctx, h.Store, zombie, identity("k"))
	must(t, "Renew by the owner", owner.Renew(ctx))
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))

	expired := begin(t, ctx, h.Store, attempt("k2"))
	complete(t, ctx, expired, result("old"))
	h.advance(retention + time.Second)
	if s, ok := h.Store.(semel.Sweeper); ok {
		_, err := s.Sweep(ctx, 100)
		must(t, "Sweep", err)
	}
	owner = begin(t, ctx, h.Store, attempt("k2"))
	if owner.Fence() <= expired.Fence() {
		t.Fatalf("after a sweep the fence went from %d to %d", expired.Fence(), owner.Fence())
	}
	lost(t, ctx, h.Store, expired, identity("k2"))
}

func fencesRise(t testing.TB, h Harness, ctx context.Context) {
	stores := []semel.Store{h.Store}
	if h.Open != nil {
		stores = append(stores, h.Open())
	}
	var last uint64
	for i := range 12 {
		c := begin(t, ctx, stores[i%len(stores)], attempt(fmt.Sprint("k", i)))
		if c.Fence() <= last {
			t.Fatalf("claim %d got fence %d after %d", i, c.Fence(), last)
		}
		last = c.Fence()
		if i%3 == 0 {
			must(t, "Release", c.Release(ctx))
		}
	}
}

// A restored backup takes the counter back with it, so a fence may be granted
// again. The token tells its owners apart.
func claimsEndWithARestore(t testing.TB, h Harness, ctx context.Context) {
	before := begin(t, ctx, h.Store, attempt("before"))
	restore := h.Backup()
	zombie := begin(t, ctx, h.Store, attempt("k"))
	restore()
	lost(t, ctx, h.Store, zombie, identity("k"))
	owner := begin(t, ctx, h.Store, attempt("k"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	complete(t, ctx, before, result("begun before the backup"))
}

func resolve(t testing.TB, ctx context.Context, s semel.Store, r semel.Resolution) semel.Record {
	t.Helper()
	rec, err := s.(semel.Resolver).Resolve(ctx, r)
	if err != nil {
		t.Fatalf("Resolve as %v: %v", r.Decision, err)
	}
	return rec
}

func resolveUnknown(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	d := semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideUnknown, Cause: "lapsed"}
	for range 2 {
		if r := resolve(t, ctx, h.Store, d); r.State != semel.StateUnknown || r.Fence != c.Fence() || r.Cause != "lapsed" {
			t.Fatalf("marked unknown, the record reads %+v", r)
		}
	}
	wantErr(t, "Renew of an unknown record", c.Renew(ctx), semel.ErrLostClaim)
	complete(t, ctx, c, result("after all"))
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func resolveResult(t testing.TB, h Harness, ctx context.Context) {
	for _, held := range []bool{true, false} {
		key := fmt.Sprint("held ", held)
		c := begin(t, ctx, h.Store, attempt(key))
		if held {
			must(t, "Hold", c.Hold(ctx, "lost contact"))
		} else {
			h.advance(2 * lease)
			resolve(t, ctx, h.Store, semel.Resolution{Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideUnknown})
		}
		r := resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideResult, Result: result("learned"),
		})
		if r.State != semel.StateCompleted || r.Fence <= c.Fence() || r.ID != c.RecordID() {
			t.Fatalf("resolved with a result, the record reads %+v", r)
		}
		lost(t, ctx, h.Store, c, identity(key))
		got := blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
		if string(got.Result.Body) != "learned" || !got.ExpiresAt.Equal(got.SettledAt.Add(retention)) || got.Cause != "" {
			t.Fatalf("the resolved record reads %+v", got)
		}
	}
}

func resolveNoEffect(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideNoEffect})
	if r.ID != c.RecordID() || r.Identity != identity("k") {
		t.Fatalf("resolved as no effect, the record read %+v", r)
	}
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find", err, semel.ErrNotFound)
	lost(t, ctx, h.Store, c, identity("k"))
	next := begin(t, ctx, h.Store, attempt("k"))
	if next.Fence() <= c.Fence() {
		t.Fatalf("the fence went from %d to %d", c.Fence(), next.Fence())
	}
	lost(t, ctx, h.Store, c, identity("k"))
}

func resolveExecuteAgain(t testing.TB, h Harness, ctx context.Context) {
	first := attempt("k")
	c := begin(t, ctx, h.Store, first)
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideExecuteAgain})
	if r.State != semel.StateInProgress || !r.Reopened || !r.Lapsed() || r.Fence <= c.Fence() {
		t.Fatalf("resolved as execute again, the record reads %+v", r)
	}
	lost(t, ctx, h.Store, c, identity("k"))
	seen := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
	if !seen.Reopened || seen.Fence != r.Fence || seen.Fingerprint != fingerprint("request") {
		t.Fatalf("the reopened record reads %+v", seen)
	}
	blocked(t, ctx, h.Store, first, semel.StateInProgress) // the old token opens nothing
	again := wantOne(t, race(t, 8, func(int) (semel.Claim, error) {
		a := attempt("k")
		a.Takeover = r.Fence
		return h.Store.Begin(ctx, a)
	}))
	if got := find(t, ctx, h.Store, identity("k")); got.Reopened || got.Lapsed() || got.Fence != again.Fence() {
		t.Fatalf("after the new claim the record reads %+v", got)
	}
	lost(t, ctx, h.Store, c, identity("k"))
	complete(t, ctx, again, result("again"))
}

// Mark, then look: what has merely lapsed may be renewed by its owner after
// somebody looked, so it cannot be settled before it is marked.
func resolveNeedsMark(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	for _, d := range []semel.Decision{semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: d})
		wantErr(t, "Resolve of a lapsed record that is not marked", err, semel.ErrStaleFence)
	}
	must(t, "Renew", c.Renew(ctx))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideExecuteAgain})
	_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideNoEffect})
	wantErr(t, "Resolve of a reopened record that is not marked", err, semel.ErrStaleFence)
	r = resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideUnknown, Cause: "changed their mind"})
	if r.State != semel.StateUnknown || r.Reopened {
		t.Fatalf("marked again, the record reads %+v", r)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateUnknown || r.Reopened {
		t.Fatalf("marked again, the record reads %+v", r)
	}
	resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideNoEffect})
	begin(t, ctx, h.Store, attempt("k"))
}

func resolveNeedsFence(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("nobody"), Fence: 1, Decision: semel.DecideNoEffect})
	wantErr(t, "Resolve of no record", err, semel.ErrNotFound)

	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = first.Fence()
	second := begin(t, ctx, h.Store, a)
	must(t, "Hold", second.Hold(ctx, "lost contact"))
	for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: first.Fence(), Decision: d})
		wantErr(t, "Resolve with a stale fence", err, semel.ErrStaleFence)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateUnknown || r.Fence != second.Fence() {
		t.Fatalf("a refused resolution left %+v", r)
	}
}

func resolveLeavesTheLiving(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	done := begin(t, ctx, h.Store, attempt("done"))
	complete(t, ctx, done, result("done"))
	h.advance(2 * lease) // a completed record has no lease that could lapse
	running := begin(t, ctx, h.Store, attempt("running"))
	for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("running"), Fence: running.Fence(), Decision: d})
		wantErr(t, "Resolve of a record under a lease", err, semel.ErrStaleFence)
		_, err = resolver.Resolve(ctx, semel.Resolution{Identity: identity("done"), Fence: done.Fence(), Decision: d})
		wantErr(t, "Resolve of a completed record", err, semel.ErrStaleFence)
	}
	must(t, "Renew", running.Renew(ctx))
	if r := find(t, ctx, h.Store, identity("done")); string(r.Result.Body) != "done" {
		t.Fatalf("the completed record reads %+v", r)
	}
}

// Two operators, and the owner after all: the first to settle a record shuts
// the others out.
func oneResolutionOfMany(t testing.TB, h Harness, ctx context.Context) {
	for round := range 4 {
		key := fmt.Sprint("k", round)
		c := begin(t, ctx, h.Store, attempt(key))
		must(t, "Hold", c.Hold(ctx, "lost contact"))
		var (
			mu    sync.Mutex
			won   []string
			wrong []error
			wg    sync.WaitGroup
		)
		settled := func(body string, err, want error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, body)
			} else if !errors.Is(err, want) {
				wrong = append(wrong, err)
			}
		}
		wg.Go(func() {
			_, err := c.Complete(ctx, result("the owner's"))
			settled("the owner's", err, semel.ErrLostClaim)
		})
		for i := range 8 {
			wg.Go(func() {
				body := fmt.Sprint("operator ", i)
				_, err := h.Store.(semel.Resolver).Resolve(ctx, semel.Resolution{
					Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideResult, Result: result(body),
				})
				settled(body, err, semel.ErrStaleFence)
			})
		}
		wg.Wait()
		if len(won) != 1 || len(wrong) > 0 {
			t.Fatalf("settled by %q; want one of them. Unexpected errors: %v", won, wrong)
		}
		if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != won[0] {
			t.Fatalf("settled by %s, the record reads %q", won[0], r.Result.Body)
		}
	}
}

// A sweep never removes in_progress or unknown.
func sweepOnlyExpired(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("expired")), result("old"))
	begin(t, ctx, h.Store, attempt("lapsed"))
	must(t, "Hold", begin(t, ctx, h.Store, attempt("unknown")).Hold(ctx, "lost contact"))
	h.advance(retention + time.Second)
	complete(t, ctx, begin(t, ctx, h.Store, attempt("fresh")), result("new"))
	n, err := h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	if n != 1 {
		t.Fatalf("Sweep removed %d records; want 1", n)
	}
	blocked(t, ctx, h.Store, attempt("lapsed"), semel.StateInProgress)
	blocked(t, ctx, h.Store, attempt("unknown"), semel.StateUnknown)
	blocked(t, ctx, h.Store, attempt("fresh"), semel.StateCompleted)
}

func sweepIsBounded(t testing.TB, h Harness, ctx context.Context) {
	for i := range 5 {
		complete(t, ctx, begin(t, ctx, h.Store, attempt(fmt.Sprint("k", i))), result("old"))
	}
	h.advance(retention + time.Second)
	for _, want := range []int{2, 2, 1, 0} {
		n, err := h.Store.(semel.Sweeper).Sweep(ctx, 2)
		must(t, "Sweep", err)
		if n != want {
			t.Fatalf("Sweep with limit 2 removed %d records; want %d", n, want)
		}
	}
}

func sweepSparesSuccessor(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("old"))
	h.advance(retention + time.Second)
	c := begin(t, ctx, h.Store, attempt("k"))
	n, err := h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	if n != 0 {
		t.Fatalf("Sweep removed %d records; want 0", n)
	}
	complete(t, ctx, c, result("new"))
	_, err = h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)

	// A successor that comes while the sweep is under way.
	for round := range 4 {
		key := fmt.Sprint("k", round)
		complete(t, ctx, begin(t, ctx, h.Store, attempt(key)), result("old"))
		h.advance(retention + time.Second)
		var (
			wg                 sync.WaitGroup
			c                  semel.Claim
			beginErr, sweepErr error
		)
		wg.Go(func() { _, sweepErr = h.Store.(semel.Sweeper).Sweep(ctx, 100) })
		wg.Go(func() { c, beginErr = h.Store.Begin(ctx, attempt(key)) })
		wg.Wait()
		must(t, "Begin beside a sweep", beginErr)
		must(t, "Sweep", sweepErr)
		complete(t, ctx, c, result("new"))
		blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
	}
}

// A context that is over before the call: an error, and no effect.
func cancelledContext(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("expired")), result("old"))
	h.advance(retention + time.Second)
	held := begin(t, ctx, h.Store, attempt("held"))
	must(t, "Hold", held.Hold(ctx, "lost contact"))
	c := begin(t, ctx, h.Store, attempt("k"))
	over, cancel := context.WithCancel(ctx)
	cancel()
	calls := map[string]func() error{
		"Begin":    func() error { _, err := h.Store.Begin(over, attempt("other")); return err },
		"Find":     func() error { _, err := h.Store.Find(over, identity("k")); return err },
		"Complete": func() error { _, err := c.Complete(over, result("late")); return err },
		"Release":  func() error { return c.Release(over) },
		"Hold":     func() error { return c.Hold(over, "late") },
		"Renew":    func() error { return c.Renew(over) },
	}
	if s, ok := h.Store.(semel.Resolver); ok {
		calls["Resolve"] = func() error {
			_, err := s.Resolve(over, semel.Resolution{Identity: identity("held"), Fence: held.Fence(), Decision: semel.DecideNoEffect})
			return err
		}
	}
	if s, ok := h.Store.(semel.Lister); ok {
		calls["List"] = func() error { _, err := s.List(over, semel.Filter{}); return err }
	}
	if s, ok := h.Store.(semel.Trail); ok {
		calls["Trail"] = func() error { _, err := s.Trail(over, semel.TrailFilter{}); return err }
	}
	sweeper, sweeps := h.Store.(semel.Sweeper)
	if sweeps {
		calls["Sweep"] = func() error { _, err := sweeper.Sweep(over, 100); return err }
	}
	for name, call := range calls {
		wantErr(t, name+" with a cancelled context", call(), context.Canceled)
	}
	if _, err := h.Store.Find(ctx, identity("other")); !errors.Is(err, semel.ErrNotFound) {
		t.Fatalf("Begin with a cancelled context left a record: %v", err)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateInProgress || r.Fence != c.Fence() {
		t.Fatalf("calls with a cancelled context left %+v", r)
	}
	blocked(t, ctx, h.Store, attempt("held"), semel.StateUnknown)
	if sweeps {
		if n, err := sweeper.Sweep(ctx, 100); n != 1 || err != nil {
			t.Fatalf("after a Sweep with a cancelled context another removed %d records, %v; want 1", n, err)
		}
	}
}

// A store that cannot reach its records grants nothing, and
// does not outstay its caller's context to find that out.
// outage are calls during one, all at the same time: each takes as long as its
// context lasts.
type outage struct {
	t       testing.TB
	ctx     context.Context
	answers map[string]chan error
}

// start makes a call in a goroutine of its own: one that ignores its context
// fails the rule and ends when the store is mended.
func (o outage) start(what string, call func(ctx context.Context) error) {
	answer := make(chan error, 1)
	o.answers[what] = answer
	go func() {
		short, cancel := context.WithTimeout(o.ctx, 500*time.Millisecond)
		defer cancel()
		answer <- call(short)
	}()
}

func (o outage) answer(what string) error {
	o.t.Helper()
	select {
	case err := <-o.answers[what]:
		return err
	case <-time.After(30 * time.Second):
		o.t.Fatalf("%s during an outage did not return 30 s after its context ended", what)
		return nil
	}
}

func (o outage) looks(s semel.Store, keys ...string) {
	for _, key := range keys {
		o.start("Begin of "+key, func(ctx context.Context) error { _, err := s.Begin(ctx, attempt(key)); return err })
		o.start("Find of "+key, func(ctx context.Context) error { _, err := s.Find(ctx, identity(key)); return err })
	}
}

// failed asserts that nobody who looked has seen anything.
func (o outage) failed(keys ...string) {
	o.t.Helper()
	for _, key := range keys {
		err := o.answer("Begin of " + key)
		if err == nil {
			o.t.Fatalf("Begin of %q during an outage granted a claim", key)
		}
		if _, ok := errors.AsType[*semel.ConflictError](err); ok {
			o.t.Fatalf("Begin of %q during an outage claims to have seen a record: %v", key, err)
		}
		if err := o.answer("Find of " + key); err == nil || errors.Is(err, semel.ErrNotFound) {
			o.t.Fatalf("Find of %q during an outage: %v; want an error that is not ErrNotFound", key, err)
		}
	}
}

func outageFailsClosed(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
	running := begin(t, ctx, h.Store, attempt("running"))
	mend := sync.OnceFunc(h.Break())
	defer mend()

	calls := outage{t, ctx, make(map[string]chan error)}
	calls.looks(h.Store, "done", "running", "new")
	calls.start("Renew", running.Renew)
	calls.start("Complete", func(ctx context.Context) error { _, err := running.Complete(ctx, result("unheard")); return err })
	for _, name := range []string{"Renew", "Complete"} {
		if err := calls.answer(name); err == nil || errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("%s during an outage: %v; want an error that is not ErrLostClaim", name, err)
		}
	}
	calls.failed("done", "running", "new")
	mend()
	blocked(t, ctx, h.Store, attempt("done"), semel.StateCompleted)
	complete(t, ctx, running, result("heard"))
}

func listFilters(t testing.TB, h Harness, ctx context.Context) {
	lister := h.Store.(semel.Lister)
	var claims []semel.Claim
	for i, key := range []string{"f", "e", "d", "c", "b", "a"} { // the order of keys is not that of fences
		a := attempt(key)
		a.Identity.Tenant = fmt.Sprint("t", i%2)
		claims = append(claims, begin(t, ctx, h.Store, a))
	}
	complete(t, ctx, claims[1], result("done"))
	must(t, "Hold", claims[2].Hold(ctx, "lost contact"))
	h.advance(2 * lease)
	must(t, "Renew", claims[3].Renew(ctx))
	list := func(f semel.Filter) (keys string) {
		t.Helper()
		records, err := lister.List(ctx, f)
		must(t, "List", err)
		for _, r := range records {
			if len(r.Result.Body) > 0 || len(r.Result.Head) > 0 {
				t.Fatalf("a listing holds the result of %s", r.ID)
			}
			keys += r.Identity.Key
		}
		return keys
	}
	for _, c := range []struct {
		f    semel.Filter
		want string
	}{
		{semel.Filter{}, "fedcba"},
		{semel.Filter{Limit: 2}, "fe"},
		{semel.Filter{Limit: 2, After: claims[1].Fence()}, "dc"},
		{semel.Filter{State: semel.StateCompleted}, "e"},
		{semel.Filter{State: semel.StateUnknown}, "d"},
		{semel.Filter{State: semel.StateInProgress}, "fcba"},
		{semel.Filter{Lapsed: true}, "fba"},
		{semel.Filter{Tenant: "t1"}, "eca"},
		{semel.Filter{Tenant: "t1", State: semel.StateInProgress}, "ca"},
		{semel.Filter{ID: claims[4].RecordID()}, "b"},
		{semel.Filter{Key: "a"}, "a"},
		{semel.Filter{Operation: "nothing"}, ""},
		{semel.Filter{Actor: "a", Limit: 1}, "f"},
	} {
		if got := list(c.f); got != c.want {
			t.Fatalf("List %+v returned %q; want %q", c.f, got, c.want)
		}
	}
	h.advance(retention + time.Second)
	if got := list(semel.Filter{State: semel.StateCompleted}); got != "" {
		t.Fatalf("List returned expired %q", got)
	}
}

func listCauses(t testing.TB, h Harness, ctx context.Context) {
	lister := h.Store.(semel.Lister)
	list := func(f semel.Filter) (keys string, records []semel.Record) {
		t.Helper()
		records, err := lister.List(ctx, f)
		must(t, "List", err)
		for _, r := range records {
			keys += r.Identity.Key
		}
		return keys, records
	}
	// Begun one after the other, by the store's clock.
	claims := make(map[string]semel.Claim)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		claims[key] = begin(t, ctx, h.Store, attempt(key))
		h.advance(time.Second)
	}
	hold := func(key, cause string) { must(t, "Hold", claims[key].Hold(ctx, cause)) }
	hold("a", "the handler answered 502")
	hold("b", "the handler answered 504")
	hold("c", "THE HANDLER ANSWERED 502")
	hold("d", "the handler answered 502 at last")
	hold("e", "100%_*")
	hold("f", "")
	// Marked unknown, and then settled by the claim that still may.
	hold("g", "the handler answered 502")
	complete(t, ctx, claims["g"], result("late"))

	all, records := list(semel.Filter{})
	if all != "abcdefgh" {
		t.Fatalf("List returned %q", all)
	}
	third := records[2].BegunAt
	for _, c := range []struct {
		f    semel.Filter
		want string
	}{
		{semel.Filter{Cause: "the handler answered 502"}, "a"},
		{semel.Filter{Cause: "the handler answered"}, ""},
		{semel.Filter{Cause: "the handler answered*"}, "abd"},
		{semel.Filter{Cause: "the handler answered*", Limit: 2}, "ab"},
		{semel.Filter{Cause: "the handler answered*", After: claims["a"].Fence()}, "bd"},
		{semel.Filter{Cause: "handler*"}, ""},
		{semel.Filter{Cause: "*"}, "abcdef"},
		{semel.Filter{Cause: "100%_**"}, "e"},
		{semel.Filter{Cause: "1__*"}, ""},
		{semel.Filter{Cause: "%"}, ""},
		{semel.Filter{Cause: "*", State: semel.StateUnknown}, "abcdef"},
		{semel.Filter{Cause: "*", State: semel.StateInProgress}, ""},
		{semel.Filter{Cause: "*", State: semel.StateCompleted}, ""},
		{semel.Filter{BegunSince: third}, "cdefgh"},
		{semel.Filter{BegunSince: third.Add(time.Nanosecond)}, "defgh"},
		{semel.Filter{BegunUntil: third}, "ab"},
		{semel.Filter{BegunUntil: third.Add(time.Nanosecond)}, "abc"},
		{semel.Filter{BegunSince: third, BegunUntil: third}, ""},
		{semel.Filter{BegunSince: third, BegunUntil: third.Add(time.Minute), Cause: "the handler*"}, "d"},
		{semel.Filter{BegunSince: third, State: semel.StateInProgress}, "h"},
	} {
		if got, _ := list(c.f); got != c.want {
			t.Fatalf("List %+v returned %q; want %q", c.f, got, c.want)
		}
	}

	// A takeover begins anew, and the cause goes with the state.
	a := attempt("a")
	a.Takeover = claims["a"].Fence()
	begin(t, ctx, h.Store, a)
	if got, _ := list(semel.Filter{Cause: "the handler answered 502"}); got != "" {
		t.Fatalf("List by the cause of a record that was taken over returned %q", got)
	}
	if got, _ := list(semel.Filter{BegunSince: third, Key: "a"}); got != "a" {
		t.Fatalf("List by the time of a takeover returned %q", got)
	}
}

func trail(t testing.TB, ctx context.Context, s semel.Store, f semel.TrailFilter) []semel.TrailEntry {
	t.Helper()
	entries, err := s.(semel.Trail).Trail(ctx, f)
	must(t, "Trail", err)
	return entries
}

func wantKinds(t testing.TB, entries []semel.TrailEntry, want ...semel.TrailKind) {
	t.Helper()
	var got []semel.TrailKind
	for _, e := range entries {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the trail reads %v; want %v", got, want)
	}
}

// The trail of a change is there when the change is answered.
func trailCommits(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "req-1", EventID: "ev-1", TraceID: "trace-1"}
	c := begin(t, ctx, h.Store, a)
	complete(t, ctx, c, result("done"))
	complete(t, ctx, c, result("done")) // repeated: no second entry
	entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "k"})
	wantKinds(t, entries, semel.TrailExecuted)
	e := entries[0]
	if e.RecordID != c.RecordID() || e.Fence != c.Fence() || e.Origin != a.Origin || e.Label != "201" ||
		e.Tenant != "t" || e.Actor != "a" || e.Operation != "orders.create" || e.Instance == "" || e.Seq == 0 || e.At.IsZero() {
		t.Fatalf("the entry of an execution reads %+v", e)
	}

	c = begin(t, ctx, h.Store, attempt("released"))
	must(t, "Release", c.Release(ctx))
	wantKinds(t, trail(t, ctx, h.Store, semel.TrailFilter{Key: "released"}), semel.TrailReleased)

	c = begin(t, ctx, h.Store, attempt("held"))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	must(t, "Hold again", c.Hold(ctx, "lost contact"))
	b := attempt("held")
	b.Takeover = c.Fence()
	begin(t, ctx, h.Store, b)
	entries = trail(t, ctx, h.Store, semel.TrailFilter{Key: "held"})
	wantKinds(t, entries, semel.TrailHeld, semel.TrailTakeover)
	if entries[0].Cause != "lost contact" || entries[1].Fence <= entries[0].Fence {
		t.Fatalf("the entries of a hold and a takeover read %+v", entries)
	}

	// A claim that was allowed to take over, but found the identity free.
	c = begin(t, ctx, h.Store, attempt("freed"))
	b = attempt("freed")
	b.Takeover = c.Fence()
	must(t, "Release", c.Release(ctx))
	begin(t, ctx, h.Store, b)
	wantKinds(t, trail(t, ctx, h.Store, semel.TrailFilter{Key: "freed"}), semel.TrailReleased)
}

func trailResolutions(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("lapsed"))
	h.advance(2 * lease)
	for range 2 { // the second finds it done
		resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity("lapsed"), Fence: c.Fence(), Decision: semel.DecideUnknown, Cause: "lapsed",
			Origin: semel.Origin{RequestID: "a duplicate"},
		})
	}
	entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "lapsed"})
	wantKinds(t, entries, semel.TrailHeld)
	if e := entries[0]; e.Cause != "lapsed" || e.RequestID != "a duplicate" || e.RecordID != c.RecordID() || e.Fence != c.Fence() {
		t.Fatalf("the entry of a record marked unknown reads %+v", e)
	}
	for _, d := range []semel.Decision{semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		c := begin(t, ctx, h.Store, attempt(d.String()))
		must(t, "Hold", c.Hold(ctx, "lost contact"))
		resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity(d.String()), Fence: c.Fence(), Decision: d, Cause: "looked it up",
			Result: result("x"), Origin: semel.Origin{RequestID: "operator"},
		})
		entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: d.String()})
		wantKinds(t, entries, semel.TrailHeld, semel.TrailResolved)
		if e := entries[1]; e.Label != d.String() || e.Cause != "looked it up" || e.RequestID != "operator" || e.RecordID != c.RecordID() {
			t.Fatalf("the entry of a resolution reads %+v", e)
		}
	}
}

// awaitTrail polls until the trail holds n entries for f.
func awaitTrail(t testing.TB, ctx context.Context, s semel.Store, f semel.TrailFilter, n int) []semel.TrailEntry {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		entries := trail(t, ctx, s, f)
		if len(entries) >= n {
			return entries
		}
		if time.Now().After(end) {
			t.Fatalf("the trail holds %d entries; want %d", len(entries), n)
		}
	}
}

func trailNotes(t testing.TB, h Harness, ctx context.Context) {
	tr := h.Store.(semel.Trail)
	const n = 50
	for i := range n {
		tr.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "k", Origin: semel.Origin{RequestID: fmt.Sprint("r", i)}, Count: uint64(i)})
	}
	entries := awaitTrail(t, ctx, h.Store, semel.TrailFilter{Key: "k"}, n)
	for i, e := range entries {
		if e.RequestID != fmt.Sprint("r", i) || e.Count != uint64(i) || e.Instance != entries[0].Instance || e.At.IsZero() ||
			i > 0 && (e.Seq != entries[i-1].Seq+1 || e.Position <= entries[i-1].Position) {
			t.Fatalf("note %d reads %+v after %+v", i, e, entries[max(i-1, 0)])
		}
	}
}

func trailFilters(t testing.TB, h Harness, ctx context.Context) {
	tr := h.Store.(semel.Trail)
	for i := range 6 {
		tr.Note(semel.TrailEntry{
			Kind: []semel.TrailKind{semel.TrailReplayed, semel.TrailMismatch}[i%2], RecordID: fmt.Sprint("rec", i/2),
			Tenant: "t", Actor: fmt.Sprint("a", i%3), Operation: "op", Key: fmt.Sprint("k", i),
			Origin: semel.Origin{RequestID: fmt.Sprint("r", i), EventID: fmt.Sprint("e", i%2), TraceID: fmt.Sprint("x", i/3)},
		})
	}
	all := awaitTrail(t, ctx, h.Store, semel.TrailFilter{}, 6)
	now := all[5].At
	for _, c := range []struct {
		f    semel.TrailFilter
		want string
	}{
		{semel.TrailFilter{RecordID: "rec1"}, "k2k3"},
		{semel.TrailFilter{Actor: "a1"}, "k1k4"},
		{semel.TrailFilter{Kind: semel.TrailMismatch}, "k1k3k5"},
		{semel.TrailFilter{RequestID: "r4"}, "k4"},
		{semel.TrailFilter{EventID: "e1", TraceID: "x1"}, "k3k5"},
		{semel.TrailFilter{Operation: "op", Limit: 2}, "k0k1"},
		{semel.TrailFilter{After: all[3].Position}, "k4k5"},
		{semel.TrailFilter{Tenant: "another"}, ""},
		{semel.TrailFilter{Since: now.Add(time.Minute)}, ""},
		{semel.TrailFilter{Until: all[0].At.Add(-time.Minute)}, ""},
		{semel.TrailFilter{Since: all[0].At.Add(-time.Minute), Until: now.Add(time.Minute)}, "k0k1k2k3k4k5"},
	} {
		var got string
		for _, e := range trail(t, ctx, h.Store, c.f) {
			got += e.Key
		}
		if got != c.want {
			t.Fatalf("Trail %+v returned %q; want %q", c.f, got, c.want)
		}
	}
}
