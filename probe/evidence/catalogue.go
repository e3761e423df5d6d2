package evidence

import "slices"

// Entry is a kind of finding: what it is called, what it means and what helps.
type Entry struct {
	ID       string
	Title    string
	Priority Priority // by default; what is at stake may raise or lower it
	// Basis is how well such a finding is usually known, and Advice what has to
	// have been seen for that, and when it is less.
	Basis       Basis
	Advice      string
	Explanation string
	Remedy      string
	References  []string // names that ReferenceURL knows
	Guidelines  Guidelines
}

// Names of what findings refer to.
const (
	refWSTG    = "OWASP WSTG-BUSL-11"
	refRace    = "CWE-362"
	refOnce    = "CWE-837"
	refDraft   = "draft-ietf-httpapi-idempotency-key-header"
	refRetry   = "RFC 9110 9.2.2"
	refOwner   = "CWE-639"
	refLeak    = "CWE-200"
	refReplay  = "CWE-294"
	refSign    = "CWE-347"
	refLog     = "CWE-778"
	ref429     = "RFC 6585 4"
	refProblem = "RFC 9457"
)

var referenceURLs = map[string]string{
	refWSTG:    "https://owasp.org/www-project-web-security-testing-guide/",
	refRace:    "https://cwe.mitre.org/data/definitions/362.html",
	refOnce:    "https://cwe.mitre.org/data/definitions/837.html",
	refDraft:   "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/",
	refRetry:   "https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2",
	refOwner:   "https://cwe.mitre.org/data/definitions/639.html",
	refLeak:    "https://cwe.mitre.org/data/definitions/200.html",
	refReplay:  "https://cwe.mitre.org/data/definitions/294.html",
	refSign:    "https://cwe.mitre.org/data/definitions/347.html",
	refLog:     "https://cwe.mitre.org/data/definitions/778.html",
	ref429:     "https://www.rfc-editor.org/rfc/rfc6585#section-4",
	refProblem: "https://www.rfc-editor.org/rfc/rfc9457",
}

// ReferenceURL is where a reference of the catalogue can be read; empty for
// others.
func ReferenceURL(name string) string { return referenceURLs[name] }

// Catalogue returns all kinds of findings, the worst first.
func Catalogue() []Entry {
	all := slices.Clone(catalogue)
	slices.SortStableFunc(all, func(a, b Entry) int {
		switch {
		case a.Priority < b.Priority:
			return -1
		case a.Priority > b.Priority:
			return 1
		}
		return 0
	})
	for i := range all {
		all[i] = all[i].whole()
	}
	return all
}

// Lookup returns the entry of an id.
func Lookup(id string) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.ID == id })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i].whole(), true
}

// whole is a copy of the entry that is the caller's own, with its guidelines.
func (e Entry) whole() Entry {
	e.References, e.Guidelines = slices.Clone(e.References), mapped(e.ID)
	return e
}

// Finding makes a finding of the entry, as the catalogue has it.
func (e Entry) Finding(experiment string, sends ...int) Finding {
	return Finding{
		ID: e.ID, Priority: e.Priority, Basis: e.Basis, Title: e.Title, Explanation: e.Explanation, Remedy: e.Remedy,
		Experiment: experiment, Sends: sends, References: slices.Clone(e.References), Guidelines: e.whole().Guidelines,
	}
}

const (
	recordWithEffect = "Claim the key and do the work under one authority: insert the key under a unique constraint on (tenant, actor, operation, key), in the transaction that makes the effect. Where the effect is elsewhere, claim durably first, and hand the same key on."
	finalArbiter     = "Let a unique constraint or a conditional update decide, not a look-up before the write: between looking and writing there is always room for the other request."
)

var catalogue = []Entry{
	{
		ID: "double-effect-sequential", Priority: P0, Basis: Established,
		Title:       "The same request sent again took effect again",
		Advice:      "Established when a state reader that saw the control's effect counts two for one key, after the state was stable. Two different resource ids alone: inferred, for ids may be drawn anew for one resource.",
		Explanation: "The request was sent, answered, and sent again, the same to the byte and with the same key. The state shows two effects. Any retry, by a client, a proxy or a user's second click, repeats the operation.",
		Remedy:      recordWithEffect + " Answer the second request from the record.",
		References:  []string{refOnce, refWSTG, refDraft, refRetry},
	},
	{
		ID: "double-effect-race", Priority: P0, Basis: Established,
		Title:       "Requests that ran at the same time took effect more than once",
		Advice:      "Established when the overlap was shown and the state counts more than one effect for one key. Without a reader, several different ids from overlapping answers: inferred.",
		Explanation: "The same request with the same key was released several times at once. More than one took effect. The target looks for the key and then acts, and two requests fit in between; whoever can send in parallel can make it happen at will.",
		Remedy:      finalArbiter + " " + recordWithEffect,
		References:  []string{refRace, refOnce, refWSTG},
	},
	{
		ID: "double-effect-lost-response", Priority: P0, Basis: Established,
		Title:       "A retry after a lost answer took effect again",
		Advice:      "Established when the first request was delivered whole, its effect or the retry's answer shows that it ran, and two effects are counted. If delivery of the first was not proven, the experiment is inconclusive, not this.",
		Explanation: "The connection was cut before the answer had arrived, and the request was sent again with its key, as a client has to after a time-out. Both took effect. The record depends on the client being there: it is written after the answer, or undone when the client goes.",
		Remedy:      "Make the effect and its record durable together, before the first byte of the answer, and let work that has begun run on when the client has gone.",
		References:  []string{refOnce, refRetry, refDraft},
	},
	{
		ID: "lost-effect", Priority: P0, Basis: Established,
		Title:       "Success was answered and nothing happened",
		Advice:      "Established when a reader that saw the control's effect sees none after the longest settle time. An effect that may be slower than that: inferred, and say how long was waited.",
		Explanation: "A request got a success and the state shows no effect of it, however long it was waited for. A key that is marked as used before the work succeeds does this: the retry is answered as a duplicate, and the work is never done.",
		Remedy:      "Record a key as completed only together with its effect. When the work fails or the process dies, the record has to go, or to be visible as unknown.",
		References:  []string{refOnce, refDraft},
	},
	{
		ID: "outside-effect-doubled", Priority: P0, Basis: Established,
		Title:       "A mail, webhook or other outside effect was sent twice",
		Advice:      "Established when a sink of the plan received two for one key. A sink that saw two deliveries with one delivery id shows at-least-once delivery: then inferred, as the receiver may drop the second.",
		Explanation: "The target's own state shows one effect, and the outside world was told twice. Sending happens beside the transaction: it is not undone with it and not deduplicated by it.",
		Remedy:      "Write the outgoing message into an outbox, in the transaction of the effect, with an id of its own; deliver it from there, and give receivers that id to deduplicate by.",
		References:  []string{refOnce, refWSTG},
	},
	{
		ID: "webhook-redelivery-doubles", Priority: P0, Basis: Established,
		Title:       "A redelivered event took effect again",
		Advice:      "Established when the same event id was accepted twice and two effects were counted.",
		Explanation: "Senders of webhooks deliver at least once: after a time-out they send the same event again, signed anew. The target applied it each time.",
		Remedy:      "Insert the event id into an inbox table in the transaction of the event's effect, and keep it longer than the sender's whole retry span. Answer 2xx only after the commit.",
		References:  []string{refOnce, refWSTG},
	},
	{
		ID: "mismatch-executed", Priority: P0, Basis: Established,
		Title:       "Another request under a used key was executed",
		Advice:      "Established when the altered request's own effect was seen. A success with a new id alone: inferred.",
		Explanation: "A key that had been used was sent with another payload, and the second payload took effect as well. The key does not hold an operation together: a client's mistake with keys makes a second payment instead of an error.",
		Remedy:      "Keep a fingerprint of the request with the key, compare it before anything else, and answer a mismatch with 422 and no effect.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: "key-ignored", Priority: P1, Basis: Inferred,
		Title:       "The key seems to have no influence",
		Advice:      "Established when the same key had two effects and requests without a key behave the same. If only the answers are the same with and without: inferred.",
		Explanation: "The target behaves the same with a used key, a fresh key and no key at all. If the documentation offers keys, clients retry in the belief that they are safe, and they are not.",
		Remedy:      "Implement the key, or refuse it. An offered key that does nothing is worse than none.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: "key-not-scoped-tenant", Priority: P0, Basis: Established,
		Title:       "A key of one tenant answers another tenant",
		Advice:      "Established when tenant B got tenant A's resource or result, or its own request had no effect because of A's key, after a replay for A had been shown. An equal status alone says nothing.",
		Explanation: "Tenant B sent a key that tenant A had used. It was answered from A's record: it saw A's result, or its own operation was swallowed. With keys that can be guessed, one tenant reads or blocks the other.",
		Remedy:      "Make the tenant, taken from the authenticated principal and never from the request, part of the unique constraint on keys.",
		References:  []string{refOwner, refLeak, refDraft},
	},
	{
		ID: "key-not-scoped-actor", Priority: P1, Basis: Established,
		Title:       "A key of one actor answers another actor of the tenant",
		Advice:      "Established as for tenants, if the contract says that keys belong to an actor. Many contracts scope keys to the account on purpose: then it is no finding.",
		Explanation: "Actor B of the same tenant sent a key that actor A had used and was answered from A's record. B may see what it may not, or its own operation is swallowed.",
		Remedy:      "Make the actor part of the unique constraint on keys, or authorise a replay like a first request and publish that keys are shared within the account.",
		References:  []string{refOwner, refDraft},
	},
	{
		ID: "conflict-leaks-payload", Priority: P1, Basis: Established,
		Title:       "The error for a used key tells of the stored request or result",
		Advice:      "Established when a value that only the first request or its answer held is in the refusal. Within one actor it is P2; across actors or tenants P0.",
		Explanation: "The answer to a mismatch or a conflict quotes what is stored under the key. Whoever guesses or learns a key can read from it.",
		Remedy:      "Refuse with a problem that names the case and nothing of the record. Give a reference to the resource only to who may read it.",
		References:  []string{refLeak, refDraft, refProblem},
	},
	{
		ID: "mismatch-replayed-as-same", Priority: P1, Basis: Established,
		Title:       "Another request under a used key was answered with the first one's result",
		Advice:      "Established when the altered request got the first result with a success, and its own effect is absent.",
		Explanation: "A key that had been used was sent with another payload. The client was told success, and what it asked for never happened: it got the result of something else.",
		Remedy:      "Keep a fingerprint of the request with the key and answer a mismatch with 422.",
		References:  []string{refDraft},
	},
	{
		ID: "replay-differs", Priority: P1, Basis: Established,
		Title:       "The second answer is another result than the first",
		Advice:      "Established by comparing the two answers, volatile fields aside. Contracts that replay the resource's current state are right to differ in its state, not in its id.",
		Explanation: "The effect happened once, yet the second answer names another resource, status or amount. A client that lost the first answer goes on with the wrong one.",
		Remedy:      "Store status, headers and body with the key and replay them as they were; or answer with a reference to the one resource.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: "replay-unmarked", Priority: P2, Basis: Established,
		Title:       "A replay does not say that it is one",
		Advice:      "Established when a replay was shown by state and no header or member marks it. The draft asks for no mark: keep it at P2.",
		Explanation: "The second answer is right, but cannot be told from a first one. Clients cannot count retries that worked, and support cannot tell a replay from a second execution.",
		Remedy:      "Mark replays, as with Idempotency-Replayed: true, and publish the mark.",
		References:  []string{refDraft},
	},
	{
		ID: "missing-key-accepted", Priority: P1, Basis: Established,
		Title:       "A request without a key is executed although keys are required",
		Advice:      "Established when the contract requires a key and the request without one took effect. If keys are optional by contract it is no finding, or P2.",
		Explanation: "The contract says that a key is required, and a request without one took effect. Clients that forget it are unprotected and do not learn of it.",
		Remedy:      "Refuse requests without a key on operations that need one: 400 with a problem that says so.",
		References:  []string{refDraft, refProblem},
	},
	{
		ID: "malformed-key-accepted-unprotected", Priority: P1, Basis: Established,
		Title:       "A malformed key is executed without protection",
		Advice:      "Established when the request with the malformed key took effect, and took effect again when repeated. Accepted and protected is fine: some targets take any text as a key.",
		Explanation: "A key that does not fit the published syntax was dropped and the request executed as if there were none. The client believes that it is protected.",
		Remedy:      "Answer a key that cannot be read with 400. Never fall back to no key.",
		References:  []string{refDraft},
	},
	{
		ID: "in-flight-executed", Priority: P0, Basis: Established,
		Title:       "A retry during the first attempt was executed as well",
		Advice:      "Established when the first was shown to be still running as the retry was delivered, and two effects were counted. A client time-out shorter than the operation makes this an everyday case.",
		Explanation: "The request was sent again while the first was still being processed. Both took effect: the key is recorded when the work is done, not when it starts.",
		Remedy:      "Mark the key as in progress, durably, before the work starts. Answer a duplicate meanwhile with 409 and Retry-After, or let it wait for the result.",
		References:  []string{refRace, refOnce, refDraft},
	},
	{
		ID: "in-flight-error-invites-new-key", Priority: P1, Basis: Inferred,
		Title:       "The answer during the first attempt leads clients to a new key",
		Advice:      "Established is the answer; that clients would take a new key is inferred from what it says and from common retry rules.",
		Explanation: "A duplicate of a request that was still running was answered with an error that reads as a final failure. Clients give up the key and try again under a new one, and the operation happens twice with every key used once.",
		Remedy:      "Say that it is in progress: 409 with Retry-After and a problem that tells the client to retry with the same key, or 202 with a place to look.",
		References:  []string{refDraft, refProblem, refRetry},
	},
	{
		ID: "unstable-5xx-on-duplicate", Priority: P1, Basis: Established,
		Title:       "A duplicate is answered with a server error",
		Advice:      "Established when it repeats; a single 5xx may be chance, then inferred. That no second effect happened has to have been read, or it is another finding.",
		Explanation: "The first request succeeded and the second, or one of a race, got a 5xx. The effect happened once, mostly because a constraint stopped the second, but the client is told of a failure that was none.",
		Remedy:      "Catch the violation of the unique constraint, read the record that is in the way, and answer from it.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: "failure-not-repeatable", Priority: P1, Basis: Established,
		Title:       "A failed first attempt changes its result when repeated",
		Advice:      "Established when both answers and the state are there. What counts as final is a matter of contract: 4xx from validation that re-executes after correction is no finding.",
		Explanation: "The first attempt failed with a final error after the work had begun. The same request with the same key then succeeded, or failed differently. A client that acted on the first answer, and made a new attempt elsewhere, now has two.",
		Remedy:      "Record every result that is final, errors too, and replay it. Forget only what certainly had no effect, and publish which.",
		References:  []string{refDraft},
	},
	{
		ID: "failure-blocks-key", Priority: P1, Basis: Established,
		Title:       "A failed first attempt leaves the key unusable",
		Advice:      "Established when the key was still refused as in progress after the longest time that the contract allows. Shorter waits: inferred.",
		Explanation: "The first attempt failed or was cut off, and since then the key is answered as being in progress, with no end. A client can only take a new key, which is what the key was to prevent.",
		Remedy:      "Give claims a lease that lapses when its owner dies, settle what is unknown by looking at the effect, and say in the answer when to try again.",
		References:  []string{refDraft},
	},
	{
		ID: "audit-missing", Priority: P1, Basis: Established,
		Title:       "An effect cannot be traced to its request",
		Advice:      "Established when the plan's audit source was read and has no line for the key, request or event id. Without a source it is unknowable.",
		Explanation: "The audit trail that was searched has nothing that joins the effect with the key, the actor and the outcome. After an incident nobody can tell a retry from a second order.",
		Remedy:      "Write one audit line for each attempt, replay and refusal, with key, tenant, actor, operation, outcome and trace id, in the transaction of the effect.",
		References:  []string{refLog},
	},
	{
		ID: "webhook-altered-accepted", Priority: P0, Basis: Established,
		Title:       "An altered event with a used signature was accepted",
		Advice:      "Established when the altered body's effect was seen. A 2xx without an effect: inferred, and P1.",
		Explanation: "The event's body was changed after it had been signed, and the target acted on it. Anyone who can send to the endpoint can make events.",
		Remedy:      "Verify the signature over the raw bytes of the body, with a comparison in constant time, before anything is parsed.",
		References:  []string{refSign},
	},
	{
		ID: "webhook-stale-accepted", Priority: P1, Basis: Established,
		Title:       "An old, correctly signed event was accepted",
		Advice:      "Established when an event signed longer ago than the tolerance took effect. Where the scheme signs no time it cannot be tested.",
		Explanation: "A delivery whose signed time lies far in the past took effect. Whoever once recorded a delivery can send it again when its event id has been forgotten.",
		Remedy:      "Refuse deliveries whose signed time is out of tolerance, usually five minutes, and keep event ids for longer than that and than the sender's retries.",
		References:  []string{refReplay, refSign},
	},
	{
		ID: "rate-limit-is-not-idempotency", Priority: P1, Basis: Inferred,
		Title:       "Only a rate limit kept duplicates from taking effect",
		Advice:      "Established when duplicates were refused with 429 and, spaced out, took effect again. If they could not be spaced out within the budget: inferred.",
		Explanation: "Duplicates that came quickly were refused with 429, and nothing else speaks for protection. A rate limit counts requests and knows nothing of keys: a slower retry takes effect again.",
		Remedy:      "Keep the rate limit, and deduplicate by key behind it. Let requests refused by the limit leave no record.",
		References:  []string{ref429, refOnce},
	},
	{
		ID: "retention-not-published", Priority: P2, Basis: Established,
		Title:       "It is not said how long keys are remembered",
		Advice:      "Established when the specification was read and is silent, and answers carry no expiry. An unread specification: unknowable.",
		Explanation: "Neither the specification nor the answers say for how long a key protects. A client that retries after the weekend cannot know whether it repeats the operation.",
		Remedy:      "Publish the retention and how an expired key is answered; better, send the time with each protected answer. Keep keys longer than clients retry.",
		References:  []string{refDraft},
	},
	{
		ID: "no-specification", Priority: P2, Basis: Established,
		Title:       "No idempotency specification is published",
		Advice:      "Established for the places that were looked at; name them. It may be published elsewhere.",
		Explanation: "The description of the operation says nothing of keys: whether they are required, their syntax, their scope, what a duplicate gets. Clients guess, and guess differently.",
		Remedy:      "Describe for each operation: key location and syntax, required or not, scope, retention, and the answers for a replay, a mismatch, one in progress and a missing key.",
		References:  []string{refDraft},
	},
}
