package evidence

import "slices"

// FindingID names a kind of finding, in reports and in the catalogue.
type FindingID string

// The kinds of findings.
const (
	FindingDoubleEffectSequential          FindingID = "double-effect-sequential"
	FindingUnstable5xxOnDuplicate          FindingID = "unstable-5xx-on-duplicate"
	FindingDoubleEffectRace                FindingID = "double-effect-race"
	FindingDoubleEffectLostResponse        FindingID = "double-effect-lost-response"
	FindingLostEffect                      FindingID = "lost-effect"
	FindingChangeNotMade                   FindingID = "change-not-made"
	FindingKeylessRequestsConfused         FindingID = "keyless-requests-confused"
	FindingOutsideEffectDoubled            FindingID = "outside-effect-doubled"
	FindingWebhookRedeliveryDoubles        FindingID = "webhook-redelivery-doubles"
	FindingMismatchExecuted                FindingID = "mismatch-executed"
	FindingKeyIgnored                      FindingID = "key-ignored"
	FindingKeyNotScopedTenant              FindingID = "key-not-scoped-tenant"
	FindingKeyNotScopedActor               FindingID = "key-not-scoped-actor"
	FindingConflictLeaksPayload            FindingID = "conflict-leaks-payload"
	FindingMismatchReplayedAsSame          FindingID = "mismatch-replayed-as-same"
	FindingReplayDiffers                   FindingID = "replay-differs"
	FindingInstanceDoubles                 FindingID = "instance-doubles"
	FindingSameMeaningExecuted             FindingID = "same-meaning-executed"
	FindingTruncatedExecuted               FindingID = "truncated-executed"
	FindingRefusalExecuted                 FindingID = "refusal-executed"
	FindingPreviewExecuted                 FindingID = "preview-executed"
	FindingKeyNotScopedOperation           FindingID = "key-not-scoped-operation"
	FindingKeyForgotten                    FindingID = "key-forgotten"
	FindingChangeDoubles                   FindingID = "change-doubles"
	FindingPreviewUsesKey                  FindingID = "preview-uses-key"
	FindingRefusalSticks                   FindingID = "refusal-sticks"
	FindingEffectsDisagree                 FindingID = "effects-disagree"
	FindingContentNotRecognised            FindingID = "content-not-recognised"
	FindingDuplicateNotAnswered            FindingID = "duplicate-not-answered"
	FindingReplayRefused                   FindingID = "replay-refused"
	FindingBadKeyServerError               FindingID = "bad-key-server-error"
	FindingReplayUnmarked                  FindingID = "replay-unmarked"
	FindingMissingKeyAccepted              FindingID = "missing-key-accepted"
	FindingMalformedKeyAcceptedUnprotected FindingID = "malformed-key-accepted-unprotected"
	FindingInFlightExecuted                FindingID = "in-flight-executed"
	FindingInFlightErrorInvitesNewKey      FindingID = "in-flight-error-invites-new-key"
	FindingFailureNotRepeatable            FindingID = "failure-not-repeatable"
	FindingFailureBlocksKey                FindingID = "failure-blocks-key"
	FindingAuditMissing                    FindingID = "audit-missing"
	FindingWebhookAlteredAccepted          FindingID = "webhook-altered-accepted"
	FindingWebhookStaleAccepted            FindingID = "webhook-stale-accepted"
	FindingRateLimitIsNotIdempotency       FindingID = "rate-limit-is-not-idempotency"
	FindingRetentionNotPublished           FindingID = "retention-not-published"
	FindingNoSpecification                 FindingID = "no-specification"
)

// Entry is a kind of finding: its name, its meaning and its remedy.
type Entry struct {
	ID       FindingID
	Title    string
	Priority Priority // the default; what is at stake may raise or lower it
	// Basis is how well such a finding is usually known. Advice says what must
	// have been seen for that, and when it is known less well.
	Basis       Basis
	Advice      string
	Explanation string
	// Inferred are the title and the explanation of a finding that is only
	// inferred. If empty, Title and Explanation serve for that as well.
	Inferred   Words
	Remedy     string
	References []string // names that ReferenceURL knows
	Guidelines Guidelines
}

// Names of the references of findings.
const (
	refWSTG    = "OWASP WSTG-BUSL-11" // of races
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
	refPartial = "RFC 9112 8"
)

var referenceURLs = map[string]string{
	refWSTG:    "https://owasp.org/www-project-web-security-testing-guide/latest/4-Web_Application_Security_Testing/10-Business_Logic_Testing/11-Testing_for_Race_Conditions",
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
	refPartial: "https://www.rfc-editor.org/rfc/rfc9112#section-8",
}

// ReferenceURL returns the address of a reference of the catalogue; empty for
// other names.
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
func Lookup(id FindingID) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.ID == id })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i].whole(), true
}

// whole returns a copy of the entry, with its guidelines, that the caller may
// change.
func (e Entry) whole() Entry {
	e.References, e.Guidelines = slices.Clone(e.References), mapped(e.ID)
	return e
}

// Finding returns a finding of this kind, in the words of the catalogue.
func (e Entry) Finding(experiment string, sends ...int) Finding {
	return Finding{
		ID: e.ID, Priority: e.Priority, Basis: e.Basis, Title: e.Title, Explanation: e.Explanation, Remedy: e.Remedy,
		Experiment: experiment, Sends: sends, References: slices.Clone(e.References), Guidelines: e.whole().Guidelines,
	}
}

const (
	recordWithEffect = "Claim what marks the request, its key or the business fields that make it one, and do the work under one authority: insert it under a unique constraint, with tenant, actor and operation, in the transaction that makes the effect. Where the effect is elsewhere, claim durably first, and hand the same mark on."
	finalArbiter     = "Let a unique constraint or a conditional update decide, not a look-up before the write: between looking and writing there is always room for the other request."
)

var catalogue = []Entry{
	{
		ID: FindingDoubleEffectSequential, Priority: P0, Basis: Established,
		Title:       "The same request sent again took effect again",
		Advice:      "Established when a state reader that saw the control's effect counts two for one request, after the state was stable. Two different resource ids alone: inferred, for ids may be drawn anew for one resource.",
		Explanation: "The request was sent, answered, and sent again, the same to the byte. The readers saw more than one effect. A retry, by a client, a proxy or a user's second click, can repeat the operation.",
		Inferred: Words{
			"The same request sent again seems to have taken effect again",
			"The request was sent, answered, and sent again, the same to the byte. The two responses name different resources. That there are two of them is inferred: no reader counted, and ids may be drawn anew for one resource.",
		},
		Remedy:     recordWithEffect + " Answer the second request from the record.",
		References: []string{refOnce, refDraft, refRetry},
	},
	{
		ID: FindingDoubleEffectRace, Priority: P0, Basis: Established,
		Title:       "Requests that ran at the same time took effect more than once",
		Advice:      "Established when the overlap was shown and the state counts more than one effect for one request. Without a reader, several different ids from overlapping responses: inferred.",
		Explanation: "The same request was released several times at once, and the readers saw more than one effect. Whoever can send in parallel can make it happen.",
		Inferred: Words{
			"Requests that ran at the same time seem to have taken effect more than once",
			"The same request was released several times at once, and the responses name different resources. That there are several of them is inferred: no reader counted.",
		},
		Remedy:     finalArbiter + " " + recordWithEffect,
		References: []string{refRace, refOnce, refWSTG},
	},
	{
		ID: FindingDoubleEffectLostResponse, Priority: P0, Basis: Established,
		Title:       "A retry after a lost response took effect again",
		Advice:      "Established when the first request was delivered whole, its effect or the retry's response shows that it ran, and two effects are counted. If delivery of the first was not proven, the experiment is inconclusive, not this.",
		Explanation: "The response to the first request did not arrive whole, and the same request was sent again, as a client has to after a time-out. The readers saw more than one effect.",
		Remedy:      "Make the effect and its record durable together, before the first byte of the response, and let work that has begun run on when the client has gone.",
		References:  []string{refOnce, refRetry, refDraft},
	},
	{
		ID: FindingLostEffect, Priority: P0, Basis: Established,
		Title:       "Success was answered and nothing happened",
		Advice:      "Established when a reader that saw the control's effect sees none after the longest settle time. An effect that may be slower than that: inferred, and say how long was waited.",
		Explanation: "A request got a success, and a reader that has seen the effects of others saw none of it within the plan's timing.settle_limit. The client takes it for done.",
		Inferred: Words{
			"Success seems to have been answered for nothing",
			"A request failed, the same request sent again got a success, and the readers saw no effect. That they would have seen one is assumed: they have seen none in this run.",
		},
		Remedy:     "Record a request as completed only together with its effect. When the work fails or the process dies, the record has to go, or to be visible as unknown.",
		References: []string{refOnce, refDraft},
	},
	{
		ID: FindingChangeNotMade, Priority: P0, Basis: Established,
		Title:       "A change was answered with success and not made",
		Advice:      "Established when a PUT or PATCH without a key, altered, was answered with success, and a GET of its address still has what the request before it sent.",
		Explanation: "A request for the same resource with another content was answered with success. A GET of its address afterwards still has what the first request sent, so the client takes for done what was not.",
		Remedy:      "Make the change, or refuse it with what stands in its way, as 409 or 412. Whether a request is the same as an earlier one is told by its content as well as by its address.",
		References:  []string{refOnce},
	},
	{
		ID: FindingKeylessRequestsConfused, Priority: P0, Basis: Established,
		Title:       "A request without a key was taken for another one without a key",
		Advice:      "Established when two requests without a key and with values of their own were answered with success, and a reader that saw the first's effect sees none of the second.",
		Explanation: "Two requests without a key were sent one after the other, each with values of its own. Both were answered with success, and the second had no effect: requests without one, of this method and address at least, count as one request. Whoever leaves the key out loses what is asked for, and may be told somebody else's result.",
		Remedy:      "Treat the lack of a key as what it is: execute such a request without a record, or refuse it with 400. Never look up an empty key, or one made of method and path.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: FindingOutsideEffectDoubled, Priority: P0, Basis: Established,
		Title:       "A mail, webhook or other outside effect was sent twice",
		Advice:      "Established when a sink of the plan received two for one request. A sink that saw two deliveries with one delivery id shows at-least-once delivery: then inferred, as the receiver may drop the second.",
		Explanation: "A reader of what is outside of the target saw more than was due for one request: something was sent again. What doubled is named in the experiment; nothing is said here of what did not.",
		Inferred: Words{
			"A mail, webhook or other outside effect was delivered twice, under one id",
			"A reader of what is outside of the target saw more deliveries than were due for one request, and they carry one id. Whether they took effect twice depends on the receiver, which may drop the second.",
		},
		Remedy:     "Write the outgoing message into an outbox, in the transaction of the effect, with an id of its own; deliver it from there, and give receivers that id to deduplicate by.",
		References: []string{refOnce},
	},
	{
		ID: FindingWebhookRedeliveryDoubles, Priority: P0, Basis: Established,
		Title:       "A redelivered event took effect again",
		Advice:      "Established when the same event id was accepted twice and two effects were counted.",
		Explanation: "Senders of webhooks deliver at least once: after a time-out they send the same event again. It was delivered again, and the readers saw more than one effect.",
		Inferred: Words{
			"A redelivered event seems to have taken effect again",
			"The same event was delivered again, and the two responses name different resources. That there are two of them is inferred: no reader counted.",
		},
		Remedy:     "Insert the event id into an inbox table in the transaction of the event's effect, and keep it longer than the sender's whole retry span. Answer 2xx only after the commit.",
		References: []string{refOnce},
	},
	{
		ID: FindingMismatchExecuted, Priority: P0, Basis: Established,
		Title:       "Another request under the same key was executed",
		Advice:      "Established when the altered request's own effect was seen, or its change by a GET of the address of a PUT or PATCH. A success with a new id alone: inferred.",
		Explanation: "A key was sent with two payloads, one after the other or at once, and both were executed. A client's mistake with keys does something else, or does it twice, and no error tells.",
		Inferred: Words{
			"Another request under the same key seems to have been executed",
			"A key that had been used was sent with another payload, and the response is a success that names another resource. That it was made is inferred: no reader saw it.",
		},
		Remedy:     "Keep a fingerprint of the request with the key, compare it before anything else, and answer a mismatch with 422 and no effect.",
		References: []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyIgnored, Priority: P1, Basis: Established,
		Title:       "The key seems to have no influence",
		Advice:      "Established when the same key had two effects and a request without a key had one.",
		Explanation: "A request with a used key took effect, and so did one without a key. If the documentation offers keys, clients retry in the belief that they are safe, and they are not.",
		Remedy:      "Implement the key, or refuse it. An offered key that does nothing is worse than none.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyNotScopedTenant, Priority: P0, Basis: Established,
		Title:       "What one tenant sent answers another tenant",
		Advice:      "Established when tenant B got tenant A's resource or result, or its own request had no effect because of A's key, after a replay for A had been shown. An equal status alone says nothing.",
		Explanation: "Tenant B sent what tenant A had sent, with the same key if there is one, and was answered from A's record: its response names A's result. Who can guess what A sent reads or blocks A.",
		Inferred: Words{
			"A key of one tenant seems to keep another tenant out",
			"Tenant B sent a key that tenant A had used, and was refused with a status that speaks of a conflict. That A's key is the reason is inferred from the status.",
		},
		Remedy:     "Make the tenant, taken from the authenticated principal and never from the request, part of the unique constraint on keys.",
		References: []string{refOwner, refLeak, refDraft},
	},
	{
		ID: FindingKeyNotScopedActor, Priority: P1, Basis: Established,
		Title:       "A key of one actor answers another actor of the tenant",
		Advice:      "Established as for tenants, if the contract says that keys belong to an actor. Many contracts scope keys to the account on purpose: then it is no finding.",
		Explanation: "Actor B of the same tenant sent a key that actor A had used, and was answered from A's record: its response names A's result. B may see what it may not, and its own operation did not happen.",
		Inferred: Words{
			"A key of one actor seems to keep another actor of the tenant out",
			"Actor B of the same tenant sent a key that actor A had used, and was refused with a status that speaks of a conflict. That A's key is the reason is inferred from the status.",
		},
		Remedy:     "Make the actor part of the unique constraint on keys, or authorise a replay like a first request and publish that keys are shared within the account.",
		References: []string{refOwner, refDraft},
	},
	{
		ID: FindingConflictLeaksPayload, Priority: P1, Basis: Established,
		Title:       "The error for a used key tells of the stored request or result",
		Advice:      "Established when a value that only the first request or its response held is in the refusal. Within one actor it is P2; across actors or tenants P0.",
		Explanation: "The response to a mismatch or a conflict quotes what is stored under the key. Whoever guesses or learns a key can read from it.",
		Remedy:      "Refuse with a problem that names the case and nothing of the record. Give a reference to the resource only to who may read it.",
		References:  []string{refLeak, refDraft, refProblem},
	},
	{
		ID: FindingMismatchReplayedAsSame, Priority: P1, Basis: Established,
		Title:       "Another request under the same key was answered with the first one's result",
		Advice:      "Established when the altered request got the first result with a success, and its own effect is absent by a reader, or by a GET of the address of a PUT or PATCH.",
		Explanation: "A key was sent with two payloads, one after the other or at once. Both were answered with success, and what one of them asks for was not there afterwards.",
		Inferred: Words{
			"Another request under the same key seems to have been answered with the first one's result",
			"A key that had been used was sent with another payload, and the response is a success. That it is the first one's result, and that nothing else happened, is inferred from the responses.",
		},
		Remedy:     "Keep a fingerprint of the request with the key and answer a mismatch with 422.",
		References: []string{refDraft},
	},
	{
		ID: FindingReplayDiffers, Priority: P1, Basis: Established,
		Title:       "The second response is another result than the first",
		Advice:      "Established by comparing the resources that two successful responses name. Another status, or the resource's state as it is now, is no finding.",
		Explanation: "The readers saw one effect, and the second response names another resource than the first. A client that lost the first response goes on with the wrong one.",
		Remedy:      "Store status, headers and body with the key and replay them as they were; or answer with a reference to the one resource.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: FindingInstanceDoubles, Priority: P0, Basis: Established,
		Title:       "Another instance does not know the request, and took effect again",
		Advice:      "Established when the instance that got the first request knows its duplicates, and a reader counts more than one effect for one that another instance got as well.",
		Explanation: "A duplicate that was sent to another instance of the service took effect again, or one of two that were sent to two instances at once did. The instance that got the first request knows its duplicates: what it remembers is its own. Behind a load balancer, a retry can go to either.",
		Inferred: Words{
			"Another instance seems not to know the request",
			"A duplicate that was sent to another instance of the service was answered with another resource. That there are two of them is inferred: no reader counted.",
		},
		Remedy:     "Keep keys where all instances look, under a unique constraint, and not in an instance's memory or a cache of its own. Locks, too, have to hold across instances.",
		References: []string{refOnce, refRace},
	},
	{
		ID: FindingSameMeaningExecuted, Priority: P0, Basis: Established,
		Title:       "The same request written in another way took effect again",
		Advice:      "Established when the same bytes sent again have no effect, and a reader counts a second one for JSON with other white space and order of members under the same key.",
		Explanation: "A used key was sent with JSON that means the same, its members in another order and with other white space, and it took effect again. The key does not hold the operation together: a client that writes its JSON anew for a retry repeats it.",
		Inferred: Words{
			"The same request written in another way seems to have taken effect again",
			"A used key was sent with JSON that means the same in other bytes, and the response is a success that names another resource. That it was made is inferred: no reader saw it.",
		},
		Remedy:     "Look the key up first, and only then compare what it was used for: by a canonical form of the JSON, or by bytes, with a refusal, never with a second execution.",
		References: []string{refOnce, refDraft},
	},
	{
		ID: FindingTruncatedExecuted, Priority: P0, Basis: Established,
		Title:       "A request that was cut off before its last byte took effect",
		Advice:      "Established when a reader that has seen effects sees one of a request whose last byte was never sent.",
		Explanation: "The connection was closed before the last byte of the request, which said how long it was, and it took effect all the same. What a client gives up, or a proxy cuts short, is carried out, with less than was meant.",
		Remedy:      "Read the body to its end before anything is done, and drop a request whose body ends before its Content-Length or its last chunk.",
		References:  []string{refPartial},
	},
	{
		ID: FindingRefusalExecuted, Priority: P0, Basis: Established,
		Title:       "A request that was refused took effect",
		Advice:      "Established when a reader that has seen effects sees one of a request that was answered with a status of 4xx.",
		Explanation: "A request was answered with a refusal, and the readers saw its effect. The client takes it for not done, corrects it and sends it under a new key.",
		Remedy:      "Validate before anything is done, and undo in one transaction what was begun before a refusal.",
		References:  []string{refOnce},
	},
	{
		ID: FindingPreviewExecuted, Priority: P0, Basis: Established,
		Title:       "A preview had an effect",
		Advice:      "Established when a reader's number, which stood still before, moved after nothing but previews were sent.",
		Explanation: "The target offers a form of the operation that only checks or shows what it would do. Nothing else was sent, and the state changed. Clients use it in the belief that it is safe to send as often as they like.",
		Remedy:      "Leave the path of a preview before the first write, or roll its transaction back; test that no state changes.",
		References:  []string{refOnce},
	},
	{
		ID: FindingKeyNotScopedOperation, Priority: P1, Basis: Established,
		Title:       "A key of one operation answers another operation",
		Advice:      "Established when another operation, whose effect under a key of its own was seen, was answered with a success under a used key and had no effect. A refusal is no finding.",
		Explanation: "Another operation was sent under a key that had been used. It was answered with a success, and did not happen: the key's record answered. A client that numbers its keys for each operation loses the second one.",
		Inferred: Words{
			"A key of one operation seems to answer another operation",
			"Another operation was sent under a key that had been used, and its response is the first operation's result. That it did not happen is inferred: no reader sees its state.",
		},
		Remedy:     "Make the operation part of the unique constraint on keys, or compare the request with what the key was used for, and refuse it.",
		References: []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyForgotten, Priority: P1, Basis: Established,
		Title:       "A key was forgotten, and its request took effect again",
		Advice:      "Established when a duplicate had no effect at first, and one after a longer time had one. P0 if that is within the time for which the target says that it keeps keys.",
		Explanation: "A duplicate after some time had an effect of its own, where an earlier one had none: the target had forgotten the key. The experiment says after how long. Retries that come later than that, from a queue or after an outage, repeat the operation.",
		Remedy:      "Keep keys longer than any client retries, a day at least, and say for how long; let a natural key decide after that.",
		References:  []string{refOnce, refDraft},
	},
	{
		ID: FindingChangeDoubles, Priority: P1, Basis: Established,
		Title:       "A changed request for the same thing took effect as another one",
		Advice:      "Established when the plan alters what does not mark the request, and a reader counts two effects. Another resource in the response alone: inferred.",
		Explanation: "The operation has no key, and knows a request by its content. A request that was altered in what, by the plan, does not make it another one took effect beside the first.",
		Inferred: Words{
			"A changed request for the same thing seems to have taken effect as another one",
			"A request that was altered in what, by the plan, does not make it another one was answered with another resource. That there are two is inferred: no reader saw the second.",
		},
		Remedy:     "Put the unique constraint over the business fields that mark a request and over nothing else, and refuse or update what differs in the others.",
		References: []string{refOnce},
	},
	{
		ID: FindingPreviewUsesKey, Priority: P1, Basis: Established,
		Title:       "A preview used up its key",
		Advice:      "Established when the operation had no effect under the key of a preview, by a reader that saw that of a request with a fresh key. P2 where it was refused, for then the client is told.",
		Explanation: "The operation's own dry run was sent with a key, and then the operation itself under the same key. That had no effect of its own, and a request with a fresh key had one. A client that checks first and then sends, with the key that it has made for the request, gets the preview's response or a refusal.",
		Remedy:      "Leave previews out of the record of keys, or keep a record of their own for them.",
		References:  []string{refDraft},
	},
	{
		ID: FindingRefusalSticks, Priority: P1, Basis: Established,
		Title:       "A corrected request is answered with the refusal of the one before",
		Advice:      "Established when an invalid request was refused and the corrected one under its key got the same response to the byte, without an effect.",
		Explanation: "A request was refused as invalid. Corrected, under the same key, it was answered with the same refusal: the key's record answered, and what was sent was not looked at. A person who corrects a form sees the same mistake for ever.",
		Remedy:      "Do not record what was refused before anything was done; or compare the request with the recorded one and say that a correction takes a new key.",
		References:  []string{refDraft},
	},
	{
		ID: FindingEffectsDisagree, Priority: P0, Basis: Established,
		Title:       "One effect of a request happened again, and another did not",
		Advice:      "Established when, of the readers of the target's own state, one counts one effect for one request and another counts more.",
		Explanation: "The request was sent more than once, and the readers of the target's state do not agree: for one of them it took effect once, for another more often. The experiment names them. A part of the operation is protected, and another part is not.",
		Remedy:      "Put all effects of an operation and its record into one transaction; what cannot be in it goes through an outbox, under an id by which it is deduplicated.",
		References:  []string{refOnce},
	},
	{
		ID: FindingContentNotRecognised, Priority: P0, Basis: Established,
		Title:       "The same content under a fresh key took effect again",
		Advice:      "Established when the contract says that a fresh key with the same content is refused, and a reader saw an effect of its own.",
		Explanation: "The contract says that the content of a request makes it one, whatever its key. The same content was sent under a fresh key, and took effect again.",
		Remedy:      "Put a unique constraint over the business fields that make two requests the same, and refuse the second with a reference to the first.",
		References:  []string{refOnce},
	},
	{
		ID: FindingDuplicateNotAnswered, Priority: P1, Basis: Inferred,
		Title:       "A duplicate of an answered request got no response",
		Advice:      "Inferred from one duplicate that was not answered within the plan's timing.timeout, where the first was. It may be chance.",
		Explanation: "The first request was answered. The same request again was not, within the plan's timing.timeout: it seems to wait for something that does not come. It was seen once, and may be chance.",
		Remedy:      "Bound the time for which a duplicate waits, and answer 409 with Retry-After when it is over. A completed request is answered from its record, at once.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: FindingReplayRefused, Priority: P2, Basis: Established,
		Title:       "A duplicate is refused, where the contract promises the first result",
		Advice:      "Established when the readers saw one effect and the duplicate was answered with a 4xx. Not asked of operations without a key, or of those whose contract promises a refusal.",
		Explanation: "The effect happened once. The duplicate was refused, where the contract of the plan says that it gets the first response or the resource as it is. A client that lost the first response has to look for its result elsewhere.",
		Remedy:      "Answer a duplicate from the record; or say in the contract that it is refused, and name the resource in the refusal.",
		References:  []string{refDraft},
	},
	{
		ID: FindingBadKeyServerError, Priority: P2, Basis: Established,
		Title:       "A key that cannot be used is answered with a server error",
		Advice:      "Established when a missing or malformed key, or a used key with another request, was answered with a 5xx.",
		Explanation: "A request without a key, with a malformed one, or with one that was used for another request was answered with a 5xx. A client takes that for a failure that a retry may mend.",
		Remedy:      "Check the key before the work: 400 for one that is malformed, or missing where one is required; 422 for one that belongs to another request. Both are final: a retry of the same mends nothing, and the response should say so.",
		References:  []string{refDraft, refProblem},
	},
	{
		ID: FindingReplayUnmarked, Priority: P2, Basis: Established,
		Title:       "A replay does not say that it is one",
		Advice:      "Established when a replay was shown by state and no header or member marks it. The draft asks for no mark: keep it at P2.",
		Explanation: "The contract names a mark for replays, and a response that was shown to be one does not carry it. Clients cannot count retries that worked, and support cannot tell a replay from a second execution.",
		Remedy:      "Mark replays, as with Idempotency-Replayed: true, and publish the mark.",
		References:  []string{refDraft},
	},
	{
		ID: FindingMissingKeyAccepted, Priority: P1, Basis: Established,
		Title:       "A request without a key is executed although keys are required",
		Advice:      "Established when the contract requires a key and the request without one took effect. If keys are optional by contract it is no finding, or P2.",
		Explanation: "The contract says that a key is required, and a request without one took effect. Clients that forget it are unprotected and do not learn of it.",
		Inferred: Words{
			"A request without a key seems to be executed although keys are required",
			"A request without a key got a success. That a key is required is what the plan assumes, or that the request took effect is inferred from the response: the experiment says which.",
		},
		Remedy:     "Refuse requests without a key on operations that need one: 400 with a problem that says so.",
		References: []string{refDraft, refProblem},
	},
	{
		ID: FindingMalformedKeyAcceptedUnprotected, Priority: P1, Basis: Established,
		Title:       "A malformed key is executed without protection",
		Advice:      "Established when the request with the malformed key took effect, and took effect again when repeated. Accepted and protected is fine: some targets take any text as a key.",
		Explanation: "A key that does not fit the syntax was sent, and the request took effect although it was refused, or took effect again when it was repeated. A client that believes that it is protected is not.",
		Remedy:      "Answer a key that cannot be read with 400. Never fall back to no key.",
		References:  []string{refDraft},
	},
	{
		ID: FindingInFlightExecuted, Priority: P0, Basis: Established,
		Title:       "A duplicate during the first attempt was executed as well",
		Advice:      "Established when the first was shown to be still running as the retry was delivered, and two effects were counted. Without a reader, two different ids: inferred. A client time-out shorter than the operation makes this an everyday case.",
		Explanation: "The request was sent again while the first was still being processed, or twice at once where it is too fast for that, and the readers saw more than one effect.",
		Inferred: Words{
			"A duplicate during the first attempt seems to have been executed as well",
			"The request was sent again while the first was still being processed, and the responses name different resources. That there are two of them is inferred: no reader counted.",
		},
		Remedy:     "Mark the request as in progress, durably, before the work starts, and keep the mark until the work is done, however long it takes. Answer a duplicate meanwhile with 409 and Retry-After, or let it wait for the result.",
		References: []string{refRace, refOnce, refWSTG, refDraft},
	},
	{
		ID: FindingInFlightErrorInvitesNewKey, Priority: P1, Basis: Inferred,
		Title:       "The response during the first attempt leads clients to a new key",
		Advice:      "Established is the response; that clients would take a new key is inferred from what it says and from common retry rules.",
		Explanation: "A duplicate of a request that was still running was answered with an error that reads as a final failure. A client that takes it for one gives up the key and tries again under a new one, and the operation happens twice with each key used once.",
		Remedy:      "Say that it is in progress: 409 with Retry-After and a problem that tells the client to retry with the same key, or 202 with a place to look.",
		References:  []string{refDraft, refProblem, refRetry},
	},
	{
		ID: FindingUnstable5xxOnDuplicate, Priority: P1, Basis: Established,
		Title:       "A duplicate is answered with a server error",
		Advice:      "Established when it repeats; a single 5xx may be chance, then inferred. That no second effect happened has to have been read, or it is another finding.",
		Explanation: "A duplicate, one of several requests at once, or a retry after a lost response got a 5xx. The readers saw no second effect. A client is told of a failure, and does not learn from the status what became of its request.",
		Inferred: Words{
			"A duplicate is answered with a server error, once so far",
			"A duplicate, one of several requests at once, or a retry after a lost response got a 5xx. The readers saw no second effect. It was seen once, and may be chance.",
		},
		Remedy:     "Where a unique constraint stops the second request, catch its violation, read the record that is in the way, and answer from it.",
		References: []string{refDraft, refRetry},
	},
	{
		ID: FindingFailureNotRepeatable, Priority: P1, Basis: Established,
		Title:       "A failed first attempt changes its result when repeated",
		Advice:      "Established when both responses and the state are there. What counts as final is a matter of contract: 4xx from validation that re-executes after correction is no finding.",
		Explanation: "The first attempt failed, and the contract says that failures are recorded. The same request then succeeded, or failed differently. A client that acted on the first response, and made a new attempt elsewhere, may now have two.",
		Remedy:      "Record every result that is final, errors too, and replay it. Forget only what certainly had no effect, and publish which.",
		References:  []string{refDraft},
	},
	{
		ID: FindingFailureBlocksKey, Priority: P1, Basis: Established,
		Title:       "An earlier attempt leaves the request unusable",
		Advice:      "Inferred when a retry was still called in progress after the longest time that the plan waits, or the request was refused, be it once.",
		Explanation: "An attempt failed, was cut off or was answered, and after that the same request was refused, or called in progress for as long as the contract allows. A client can only give up, or begin anew.",
		Inferred: Words{
			"An earlier attempt seems to leave the request unusable",
			"An attempt failed, was cut off or was answered, and after that the same request was refused, or still called in progress. After a failure or a lost response, what is called in progress is sent again until the plan's timing.settle_limit is over; any other refusal may have been seen once. That it stays so is inferred. A client can only give up, or begin anew.",
		},
		Remedy:     "Give claims a lease that lapses when its owner dies, settle what is unknown by looking at the effect, and say in the response when to try again.",
		References: []string{refDraft},
	},
	{
		ID: FindingAuditMissing, Priority: P1, Basis: Established,
		Title:       "An effect cannot be traced to its request",
		Advice:      "Established when the plan's audit source was read and has no line for the key, request or event id. Without a source it is unknowable.",
		Explanation: "No audit source that was searched has a line with the key or an id of the request. After an incident nobody can tell from it which request an effect belongs to.",
		Remedy:      "Write one audit line for each attempt, replay and refusal, with key, tenant, actor, operation, outcome and trace id, in the transaction of the effect.",
		References:  []string{refLog},
	},
	{
		ID: FindingWebhookAlteredAccepted, Priority: P0, Basis: Established,
		Title:       "An altered event with a used signature was accepted",
		Advice:      "Established when the altered body's effect was seen. A 2xx without an effect: inferred, and P1.",
		Explanation: "The event's body was changed after it had been signed, and it took effect. Anyone who can send to the endpoint can make events.",
		Inferred: Words{
			"An altered event with a used signature was answered with a success",
			"The event's body was changed after it had been signed, and the response is a success. No effect of it was seen: that it was accepted is inferred.",
		},
		Remedy:     "Verify the signature over the raw bytes of the body, with a comparison in constant time, before anything is parsed.",
		References: []string{refSign},
	},
	{
		ID: FindingWebhookStaleAccepted, Priority: P1, Basis: Established,
		Title:       "An old, correctly signed event was accepted",
		Advice:      "Established when an event signed longer ago than the tolerance took effect. Where the scheme signs no time it cannot be tested.",
		Explanation: "A delivery whose signed time lies far in the past took effect. Whoever once recorded a delivery can send it again when its event id has been forgotten.",
		Remedy:      "Refuse deliveries whose signed time is out of tolerance, usually five minutes, and keep event ids for longer than that and than the sender's retries.",
		References:  []string{refReplay, refSign},
	},
	{
		ID: FindingRateLimitIsNotIdempotency, Priority: P1, Basis: Established,
		Title:       "Only a rate limit kept duplicates from taking effect",
		Advice:      "Established when duplicates were refused with 429 and, spaced out, took effect again.",
		Explanation: "Duplicates that came quickly were refused with 429, and a slower one took effect. A rate limit counts requests and does not know which are the same.",
		Remedy:      "Keep the rate limit, and deduplicate by key or by content behind it. Let requests refused by the limit leave no record.",
		References:  []string{ref429, refOnce},
	},
	{
		ID: FindingRetentionNotPublished, Priority: P2, Basis: Established,
		Title:       "It is not said how long keys are remembered",
		Advice:      "Established when the specification was read and is silent, and responses carry no expiry. An unread specification: unknowable.",
		Explanation: "Neither the specification that the plan names, in the words that were searched for, nor the responses say for how long a key protects. A client that retries after the weekend cannot know whether it repeats the operation.",
		Remedy:      "Publish the retention and how an expired key is answered; better, send the time with each protected response. Keep keys longer than clients retry.",
		References:  []string{refDraft},
	},
	{
		ID: FindingNoSpecification, Priority: P2, Basis: Established,
		Title:       "The specification does not say how duplicates are recognised",
		Advice:      "Established for the places that were looked at; name them. It may be published elsewhere.",
		Explanation: "The document that the plan names has no word, for this operation, of those by which it is usually said how duplicates are recognised: whether keys are required, their syntax, their scope, what a duplicate gets. Clients have to guess.",
		Remedy:      "Describe for each operation: key location and syntax, required or not, scope, retention, and the responses for a replay, a mismatch, one in progress and a missing key.",
		References:  []string{refDraft},
	},
}
