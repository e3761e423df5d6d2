package storetest

import (
	"bytes"
	"context"
	"errors"
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
