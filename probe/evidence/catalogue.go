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
	recordWithEffect = "Let one authority decide. Insert what identifies the request (its key, or the business fields that make it unique) under a unique constraint, with tenant, actor and operation, in the transaction that makes the effect. If the effect is elsewhere, record the claim durably first, and pass the same identifier on."
	finalArbiter     = "Let a unique constraint or a conditional update decide, not a look-up before the write: another request can always come between the two."
)

var catalogue = []Entry{
	{
		ID: FindingDoubleEffectSequential, Priority: P0, Basis: Established,
		Title:       "The same request sent again took effect again",
		Advice:      "Established when a state reader that saw the control's effect counts two for one request, once the state is stable. Two different resource ids alone: inferred, because one resource may be given a new id each time.",
		Explanation: "The request was sent and answered, and then sent again, byte for byte the same. The readers saw more than one effect. A retry by a client or a proxy, or a second click by a user, can repeat the operation.",
		Inferred: Words{
			"The same request sent again seems to have taken effect again",
			"The request was sent and answered, and then sent again, byte for byte the same. The two responses name different resources. That there are two resources is inferred: no reader counted them, and one resource may be given a new id each time.",
		},
		Remedy:     recordWithEffect + " Answer the second request from the record.",
		References: []string{refOnce, refDraft, refRetry},
	},
	{
		ID: FindingDoubleEffectRace, Priority: P0, Basis: Established,
		Title:       "Requests that ran at the same time took effect more than once",
		Advice:      "Established when the overlap was shown and the readers count more than one effect for one request. Without a reader, several different ids from overlapping responses: inferred.",
		Explanation: "The same request was released several times at once, and the readers saw more than one effect. Anyone who can send requests in parallel can make this happen.",
		Inferred: Words{
			"Requests that ran at the same time seem to have taken effect more than once",
			"The same request was released several times at once, and the responses name different resources. That there are several resources is inferred: no reader counted them.",
		},
		Remedy:     finalArbiter + " " + recordWithEffect,
		References: []string{refRace, refOnce, refWSTG},
	},
	{
		ID: FindingDoubleEffectLostResponse, Priority: P0, Basis: Established,
		Title:       "A retry after a lost response took effect again",
		Advice:      "Established when the first request was delivered whole, its effect or the retry's response shows that it ran, and two effects are counted. If delivery of the first was not proven, the experiment is inconclusive and this is no finding.",
		Explanation: "The response to the first request did not arrive whole, and the same request was sent again, as a client has to do after a time-out. The readers saw more than one effect.",
		Remedy:      "Make the effect and its record durable together, before the first byte of the response, and let work that has begun finish even if the client goes away.",
		References:  []string{refOnce, refRetry, refDraft},
	},
	{
		ID: FindingLostEffect, Priority: P0, Basis: Established,
		Title:       "A request was answered with success and had no effect",
		Advice:      "Established when a reader that saw the control's effect sees none after the longest settle time. If the effect may be slower than that: inferred, and the report says how long the probe waited.",
		Explanation: "A request was answered with success. A reader that has seen the effects of other requests saw none of this one within the plan's timing.settle_limit. The client believes that it is done.",
		Inferred: Words{
			"A request seems to have been answered with success and to have had no effect",
			"A request failed, the same request sent again was answered with success, and the readers saw no effect. That they would have seen one is assumed: they have seen none in this run.",
		},
		Remedy:     "Record a request as completed only together with its effect. When the work fails or the process dies, the record must be removed or be visible as unknown.",
		References: []string{refOnce, refDraft},
	},
	{
		ID: FindingChangeNotMade, Priority: P0, Basis: Established,
		Title:       "A change was answered with success but not made",
		Advice:      "Established when a PUT or PATCH without a key, altered, was answered with success, and a GET of its address still returns what the request before it sent.",
		Explanation: "A request for the same resource with different content was answered with success. A GET of its address afterwards still returns what the first request sent, so the client believes in a change that was not made.",
		Remedy:      "Make the change, or refuse it with a 409 or 412 that says what stands in its way. Compare the content as well as the address to decide whether a request is the same as an earlier one.",
		References:  []string{refOnce},
	},
	{
		ID: FindingKeylessRequestsConfused, Priority: P0, Basis: Established,
		Title:       "A request without a key was mistaken for another one without a key",
		Advice:      "Established when two requests without a key and with values of their own were answered with success, and a reader that saw the first's effect sees none of the second.",
		Explanation: "Two requests without a key were sent one after the other, each with values of its own. Both were answered with success, and the second had no effect: at least for this method and address, all requests without a key count as one request. A client that leaves the key out loses its operation, and may be given somebody else's result.",
		Remedy:      "Execute a request without a key without a record, or refuse it with 400. Never look up an empty key, or one made of method and path.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: FindingOutsideEffectDoubled, Priority: P0, Basis: Established,
		Title:       "A mail, webhook or other outside effect was sent twice",
		Advice:      "Established when a sink of the plan received two for one request. If a sink saw two deliveries with one delivery id, that is at-least-once delivery: inferred, because the receiver may drop the second.",
		Explanation: "A reader outside the target saw more than was due for one request: something was sent again. The experiment names what doubled. This finding says nothing about the rest.",
		Inferred: Words{
			"A mail, webhook or other outside effect was delivered twice, under one id",
			"A reader outside the target saw more deliveries than were due for one request, and they carry one id. Whether they took effect twice depends on the receiver, which may drop the second.",
		},
		Remedy:     "Write the outgoing message to an outbox, in the transaction of the effect and with an id of its own. Deliver it from there, and send the id along so that receivers can deduplicate.",
		References: []string{refOnce},
	},
	{
		ID: FindingWebhookRedeliveryDoubles, Priority: P0, Basis: Established,
		Title:       "A redelivered event took effect again",
		Advice:      "Established when the same event id was accepted twice and two effects were counted.",
		Explanation: "Senders of webhooks deliver at least once: after a time-out they send the same event again. The event was delivered again, and the readers saw more than one effect.",
		Inferred: Words{
			"A redelivered event seems to have taken effect again",
			"The same event was delivered again, and the two responses name different resources. That there are two resources is inferred: no reader counted them.",
		},
		Remedy:     "Insert the event id into an inbox table in the transaction of the event's effect, and keep it for longer than the sender retries. Answer 2xx only after the commit.",
		References: []string{refOnce},
	},
	{
		ID: FindingMismatchExecuted, Priority: P0, Basis: Established,
		Title:       "Another request under the same key was executed",
		Advice:      "Established when the altered request's own effect was seen, or its change by a GET of the address of a PUT or PATCH. A success with a new id alone: inferred.",
		Explanation: "A key was sent with two payloads, one after the other or at once, and both were executed. If a client reuses a key by mistake, the wrong thing happens, or it happens twice, and no error says so.",
		Inferred: Words{
			"Another request under the same key seems to have been executed",
			"A used key was sent with another payload, and the response is a success that names another resource. That this resource was created is inferred: no reader saw it.",
		},
		Remedy:     "Keep a fingerprint of the request with the key, compare it before anything else, and answer a mismatch with 422 and no effect.",
		References: []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyIgnored, Priority: P1, Basis: Established,
		Title:       "The key seems to have no influence",
		Advice:      "Established when the same key had two effects and a request without a key had one.",
		Explanation: "A request with a used key took effect, and so did one without a key. If the documentation offers keys, clients believe that their retries are safe, and they are not.",
		Remedy:      "Implement the key, or refuse it. A key that is offered and does nothing is worse than no key.",
		References:  []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyNotScopedTenant, Priority: P0, Basis: Established,
		Title:       "A tenant gets the result of another tenant's request",
		Advice:      "Established when tenant B got tenant A's resource or result, or its own request had no effect because of A's key, after a replay for A had been shown. The same status alone shows nothing.",
		Explanation: "Tenant B sent what tenant A had sent, with the same key if there is one, and was answered from A's record: the response to B names A's result. Anyone who can guess what A sends can read A's results or block A's requests.",
		Inferred: Words{
			"A key of one tenant seems to keep another tenant out",
			"Tenant B sent a key that tenant A had used, and was refused with the status of a conflict. That A's key is the reason is inferred from the status.",
		},
		Remedy:     "Make the tenant, taken from the authenticated principal and never from the request, part of the unique constraint on keys.",
		References: []string{refOwner, refLeak, refDraft},
	},
	{
		ID: FindingKeyNotScopedActor, Priority: P1, Basis: Established,
		Title:       "An actor gets the result of a key that another actor of the tenant used",
		Advice:      "Established as for tenants, if the contract says that keys belong to an actor. Many contracts scope keys to the account on purpose; for those it is no finding.",
		Explanation: "Actor B of the same tenant sent a key that actor A had used, and was answered from A's record: the response to B names A's result. B may see what it has no right to see, and its own operation did not happen.",
		Inferred: Words{
			"A key of one actor seems to keep another actor of the tenant out",
			"Actor B of the same tenant sent a key that actor A had used, and was refused with the status of a conflict. That A's key is the reason is inferred from the status.",
		},
		Remedy:     "Make the actor part of the unique constraint on keys, or authorise a replay like a first request and document that keys are shared within the account.",
		References: []string{refOwner, refDraft},
	},
	{
		ID: FindingConflictLeaksPayload, Priority: P1, Basis: Established,
		Title:       "The error for a used key reveals the stored request or result",
		Advice:      "Established when a value that only the first request or its response held is in the refusal. Within one actor it is P2; across actors or tenants P0.",
		Explanation: "The response to a mismatch or a conflict quotes what is stored under the key. Anyone who guesses or learns a key can read it.",
		Remedy:      "Refuse with a problem that names the case and reveals nothing of the record. Refer to the resource only if the caller may read it.",
		References:  []string{refLeak, refDraft, refProblem},
	},
	{
		ID: FindingMismatchReplayedAsSame, Priority: P1, Basis: Established,
		Title:       "Another request under the same key was answered with the first one's result",
		Advice:      "Established when the altered request was answered with success and the first result, and a reader, or a GET of the address of a PUT or PATCH, shows that its own effect is absent.",
		Explanation: "A key was sent with two payloads, one after the other or at once. Both were answered with success, and what one of them asked for was not there afterwards.",
		Inferred: Words{
			"Another request under the same key seems to have been answered with the first one's result",
			"A used key was sent with another payload, and the response is a success. That it is the first one's result, and that nothing else happened, is inferred from the responses.",
		},
		Remedy:     "Keep a fingerprint of the request with the key and answer a mismatch with 422.",
		References: []string{refDraft},
	},
	{
		ID: FindingReplayDiffers, Priority: P1, Basis: Established,
		Title:       "The second response gives a different result from the first",
		Advice:      "Established by comparing the resources that two successful responses name. Another status, or the resource's state as it is now, is no finding.",
		Explanation: "The readers saw one effect, but the second response names a different resource from the first. A client that lost the first response continues with the wrong one.",
		Remedy:      "Store status, headers and body with the key and replay them unchanged, or answer with a reference to the one resource.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: FindingInstanceDoubles, Priority: P0, Basis: Established,
		Title:       "Another instance does not know the request, and took effect again",
		Advice:      "Established when the instance that got the first request recognises its duplicates, and a reader counts more than one effect for a request that another instance got as well.",
		Explanation: "A duplicate that was sent to another instance of the service took effect again, or one of two that were sent to two instances at once did. The instance that got the first request recognises its duplicates, so each instance remembers only its own requests. Behind a load balancer, a retry can go to either.",
		Inferred: Words{
			"Another instance seems not to know the request",
			"A duplicate that was sent to another instance of the service was answered with another resource. That there are two resources is inferred: no reader counted them.",
		},
		Remedy:     "Keep keys in a place that all instances share, under a unique constraint, and not in the memory or the cache of one instance. Locks, too, have to hold across instances.",
		References: []string{refOnce, refRace},
	},
	{
		ID: FindingSameMeaningExecuted, Priority: P0, Basis: Established,
		Title:       "The same request in another form took effect again",
		Advice:      "Established when the same bytes sent again have no effect, and a reader counts a second one for JSON with different white space and order of members under the same key.",
		Explanation: "A used key was sent with JSON that means the same, its members in another order and with different white space, and it took effect again. The key alone does not identify the operation: a client that serialises its JSON again for a retry repeats it.",
		Inferred: Words{
			"The same request in another form seems to have taken effect again",
			"A used key was sent with JSON that means the same in other bytes, and the response is a success that names another resource. That this resource was created is inferred: no reader saw it.",
		},
		Remedy:     "Look the key up first, and only then compare the request with the one it was used for, in a canonical form of the JSON or byte for byte. If they differ, refuse the request; never execute it a second time.",
		References: []string{refOnce, refDraft},
	},
	{
		ID: FindingTruncatedExecuted, Priority: P0, Basis: Established,
		Title:       "A request that was cut off before its last byte took effect",
		Advice:      "Established when a reader that has seen effects sees one of a request whose last byte was never sent.",
		Explanation: "The request said how long it was, the connection was closed before its last byte, and it took effect all the same. What a client abandons, or a proxy cuts short, is carried out, with part of its data missing.",
		Remedy:      "Read the body to its end before doing anything, and drop a request whose body ends before its Content-Length or its last chunk.",
		References:  []string{refPartial},
	},
	{
		ID: FindingRefusalExecuted, Priority: P0, Basis: Established,
		Title:       "A request that was refused took effect",
		Advice:      "Established when a reader that has seen effects sees one of a request that was answered with a status of 4xx.",
		Explanation: "A request was answered with a refusal, and the readers saw its effect. The client believes that nothing was done, corrects the request and sends it under a new key.",
		Remedy:      "Validate before doing anything, and roll back in one transaction what was begun before a refusal.",
		References:  []string{refOnce},
	},
	{
		ID: FindingPreviewExecuted, Priority: P0, Basis: Established,
		Title:       "A preview had an effect",
		Advice:      "Established when a reader's number was stable and changed after nothing but previews were sent.",
		Explanation: "The target offers a form of the operation that only checks or shows what it would do. Only that was sent, and the state changed. Clients believe that they can send it safely, as often as they like.",
		Remedy:      "Return from a preview before the first write, or roll its transaction back. Test that no state changes.",
		References:  []string{refOnce},
	},
	{
		ID: FindingKeyNotScopedOperation, Priority: P1, Basis: Established,
		Title:       "An operation gets the result of a key that another operation used",
		Advice:      "Established when another operation, whose effect under a key of its own was seen, was answered with success under a used key and had no effect. A refusal is no finding.",
		Explanation: "Another operation was sent under a used key. It was answered with success and did not happen: the response came from the key's record. A client that numbers its keys separately for each operation loses the second one.",
		Inferred: Words{
			"An operation seems to get the result of a key that another operation used",
			"Another operation was sent under a used key, and its response is the first operation's result. That it did not happen is inferred: no reader sees its state.",
		},
		Remedy:     "Make the operation part of the unique constraint on keys, or compare the request with what the key was used for, and refuse it.",
		References: []string{refDraft, refOnce},
	},
	{
		ID: FindingKeyForgotten, Priority: P1, Basis: Established,
		Title:       "A key was forgotten, and its request took effect again",
		Advice:      "Established when a duplicate had no effect at first, and one after a longer time had one. P0 if the target says that it keeps keys for that long.",
		Explanation: "A duplicate had an effect of its own after some time, and an earlier one had none: the target had forgotten the key. The experiment says after how long. Retries that come later than that, from a queue or after an outage, repeat the operation.",
		Remedy:      "Keep keys for longer than any client retries, for at least a day, and document how long. Let a natural key decide after that.",
		References:  []string{refOnce, refDraft},
	},
	{
		ID: FindingChangeDoubles, Priority: P1, Basis: Established,
		Title:       "A changed request for the same thing took effect as a new request",
		Advice:      "Established when the plan alters only what does not identify the request, and a reader counts two effects. Another resource in the response alone: inferred.",
		Explanation: "The operation has no key and recognises a request by its content. The plan altered parts that do not identify the request, and the altered request took effect as well as the first.",
		Inferred: Words{
			"A changed request for the same thing seems to have taken effect as a new request",
			"The plan altered parts that do not identify the request, and the altered request was answered with another resource. That there are two resources is inferred: no reader saw the second.",
		},
		Remedy:     "Put the unique constraint on the business fields that identify a request and on nothing else. If the other fields differ, refuse the request or update them.",
		References: []string{refOnce},
	},
	{
		ID: FindingPreviewUsesKey, Priority: P1, Basis: Established,
		Title:       "A preview used up its key",
		Advice:      "Established when the operation had no effect under the key of a preview, and the same reader saw the effect of a request with a fresh key. P2 if it was refused, because then the client is told.",
		Explanation: "The operation's own dry run was sent with a key, and then the operation itself under the same key. The operation had no effect, and a request with a fresh key had one. A client that checks first and then sends with the same key gets the preview's response or a refusal.",
		Remedy:      "Do not record the keys of previews, or record them separately.",
		References:  []string{refDraft},
	},
	{
		ID: FindingRefusalSticks, Priority: P1, Basis: Established,
		Title:       "A corrected request is answered with the refusal of the invalid one",
		Advice:      "Established when an invalid request was refused and the corrected one under its key got the same response, byte for byte, without an effect.",
		Explanation: "A request was refused as invalid. The corrected request under the same key got the same refusal: it came from the key's record, and the correction was not looked at. A person who corrects a form sees the same error forever.",
		Remedy:      "Do not record a refusal that came before anything was done. Or compare the request with the recorded one, and say that a correction needs a new key.",
		References:  []string{refDraft},
	},
	{
		ID: FindingEffectsDisagree, Priority: P0, Basis: Established,
		Title:       "One effect of a request happened again, and another did not",
		Advice:      "Established when, of the readers of the target's own state, one counts one effect for one request and another counts more.",
		Explanation: "The request was sent more than once, and the readers of the target's state do not agree: one counts one effect, another counts more. The experiment names them. Part of the operation is protected, and part of it is not.",
		Remedy:      "Put all effects of an operation and its record into one transaction. Send the rest through an outbox, under an id that receivers can deduplicate by.",
		References:  []string{refOnce},
	},
	{
		ID: FindingContentNotRecognised, Priority: P0, Basis: Established,
		Title:       "The same content under a fresh key took effect again",
		Advice:      "Established when the contract says that a fresh key with the same content is refused, and a reader saw an effect of its own.",
		Explanation: "The contract says that the content identifies a request, whatever its key. The same content was sent under a fresh key and took effect again.",
		Remedy:      "Put a unique constraint on the business fields that make two requests the same, and refuse the second with a reference to the first.",
		References:  []string{refOnce},
	},
	{
		ID: FindingDuplicateNotAnswered, Priority: P1, Basis: Inferred,
		Title:       "A duplicate of an answered request got no response",
		Advice:      "Inferred from one duplicate that was not answered within the plan's timing.timeout, although the first was. It may be chance.",
		Explanation: "The first request was answered. The same request again was not, within the plan's timing.timeout: it seems to wait for something that never comes. This was seen once and may be chance.",
		Remedy:      "Bound the time that a duplicate waits, and answer 409 with Retry-After when it is over. Answer a duplicate of a completed request from its record, at once.",
		References:  []string{refDraft, refRetry},
	},
	{
		ID: FindingReplayRefused, Priority: P2, Basis: Established,
		Title:       "A duplicate is refused although the contract promises the first result",
		Advice:      "Established when the readers saw one effect and the duplicate was answered with a 4xx. Not asked of operations without a key, or of those whose contract promises a refusal.",
		Explanation: "The effect happened once. The duplicate was refused, although the contract of the plan says that it gets the first response or the current resource. A client that lost the first response has to look for its result elsewhere.",
		Remedy:      "Answer a duplicate from the record. Or say in the contract that it is refused, and name the resource in the refusal.",
		References:  []string{refDraft},
	},
	{
		ID: FindingBadKeyServerError, Priority: P2, Basis: Established,
		Title:       "A key that cannot be used is answered with a server error",
		Advice:      "Established when a missing or malformed key, or a used key with another request, was answered with a 5xx.",
		Explanation: "A request without a key, with a malformed one, or with one that was used for another request was answered with a 5xx. A client believes that a retry may help.",
		Remedy:      "Check the key before the work: answer 400 if it is malformed, or missing where one is required, and 422 if it belongs to another request. Both are final: retrying the same request does not help, and the response should say so.",
		References:  []string{refDraft, refProblem},
	},
	{
		ID: FindingReplayUnmarked, Priority: P2, Basis: Established,
		Title:       "A replay does not say that it is one",
		Advice:      "Established when the state shows that a response is a replay and no header or member marks it. The draft requires no mark: keep it at P2.",
		Explanation: "The contract names a mark for replays, and a response that was shown to be a replay does not carry it. Clients cannot count the retries that worked, and support cannot tell a replay from a second execution.",
		Remedy:      "Mark replays, for example with Idempotency-Replayed: true, and document the mark.",
		References:  []string{refDraft},
	},
	{
		ID: FindingMissingKeyAccepted, Priority: P1, Basis: Established,
		Title:       "A request without a key is executed although keys are required",
		Advice:      "Established when the contract requires a key and the request without one took effect. If the contract makes keys optional, it is no finding, or P2.",
		Explanation: "The contract says that a key is required, and a request without one took effect. Clients that forget it are unprotected and are not told.",
		Inferred: Words{
			"A request without a key seems to be executed although keys are required",
			"A request without a key was answered with success. Either the plan only assumes that keys are required, or the effect is inferred from the response: the experiment says which.",
		},
		Remedy:     "Refuse requests without a key on operations that need one: 400 with a problem that says so.",
		References: []string{refDraft, refProblem},
	},
	{
		ID: FindingMalformedKeyAcceptedUnprotected, Priority: P1, Basis: Established,
		Title:       "A malformed key is executed without protection",
		Advice:      "Established when the request with the malformed key took effect, and took effect again when repeated. A malformed key that is accepted and protects is fine: some targets take any text as a key.",
		Explanation: "A key that violates the syntax was sent, and the request took effect although it was refused, or took effect again when it was repeated. A client that believes it is protected is not.",
		Remedy:      "Answer a key that cannot be parsed with 400. Never treat it as no key.",
		References:  []string{refDraft},
	},
	{
		ID: FindingInFlightExecuted, Priority: P0, Basis: Established,
		Title:       "A duplicate that came during the first attempt was executed as well",
		Advice:      "Established when the first was shown to be still running when the retry was delivered, and two effects were counted. Without a reader, two different ids: inferred. If a client's time-out is shorter than the operation, this happens every day.",
		Explanation: "The request was sent again while the first was still being processed, or twice at once if it is too fast for that, and the readers saw more than one effect.",
		Inferred: Words{
			"A duplicate that came during the first attempt seems to have been executed as well",
			"The request was sent again while the first was still being processed, and the responses name different resources. That there are two resources is inferred: no reader counted them.",
		},
		Remedy:     "Durably mark the request as in progress before the work starts, and keep the mark until the work is done, however long it takes. Until then answer a duplicate with 409 and Retry-After, or let it wait for the result.",
		References: []string{refRace, refOnce, refWSTG, refDraft},
	},
	{
		ID: FindingInFlightErrorInvitesNewKey, Priority: P1, Basis: Inferred,
		Title:       "The response to a duplicate during the first attempt leads clients to use a new key",
		Advice:      "The response is established. That clients would use a new key is inferred from what it says and from common retry rules.",
		Explanation: "A duplicate of a request that was still running was answered with an error that reads as a final failure. A client that believes it gives up the key and tries again under a new one. Then the operation happens twice, although each key was used for one execution.",
		Remedy:      "Say that it is in progress: 409 with Retry-After and a problem that tells the client to retry with the same key, or 202 with a URL where the result will be.",
		References:  []string{refDraft, refProblem, refRetry},
	},
	{
		ID: FindingUnstable5xxOnDuplicate, Priority: P1, Basis: Established,
		Title:       "A duplicate is answered with a server error",
		Advice:      "Established when it repeats; a single 5xx may be chance and is inferred. A reader must have shown that there was no second effect, or it is another finding.",
		Explanation: "A duplicate, one of several simultaneous requests, or a retry after a lost response got a 5xx. The readers saw no second effect. The client is told of a failure, and the status does not tell it what became of its request.",
		Inferred: Words{
			"A duplicate is answered with a server error, once so far",
			"A duplicate, one of several simultaneous requests, or a retry after a lost response got a 5xx. The readers saw no second effect. This was seen once and may be chance.",
		},
		Remedy:     "Where a unique constraint stops the second request, catch the violation, read the existing record, and answer from it.",
		References: []string{refDraft, refRetry},
	},
	{
		ID: FindingFailureNotRepeatable, Priority: P1, Basis: Established,
		Title:       "A failed attempt gets a different result when it is repeated",
		Advice:      "Established when both responses and the state were read. What counts as final is a matter of contract: a request that validation refuses with 4xx, and that is executed after correction, is no finding.",
		Explanation: "The first attempt failed, and the contract says that failures are recorded. The same request then succeeded, or failed differently. A client that acted on the first response, and did the same elsewhere, may now have two effects.",
		Remedy:      "Record every final result, including errors, and replay it. Forget only results that certainly had no effect, and document which.",
		References:  []string{refDraft},
	},
	{
		ID: FindingFailureBlocksKey, Priority: P1, Basis: Established,
		Title:       "An earlier attempt leaves the request unusable",
		Advice:      "Inferred when a retry was still answered as in progress after the longest time that the plan waits, or the request was refused, even if only once.",
		Explanation: "An attempt failed, was cut off or was answered. After that the same request was refused, or was answered as in progress for as long as the contract allows. A client can only give up or start over.",
		Inferred: Words{
			"An earlier attempt seems to leave the request unusable",
			"An attempt failed, was cut off or was answered. After that the same request was refused, or was still answered as in progress. After a failure or a lost response, a request that is in progress is sent again until the plan's timing.settle_limit is over; any other refusal may have been seen only once. That it stays so is inferred. A client can only give up or start over.",
		},
		Remedy:     "Give claims a lease that lapses when the owner dies, settle unknown outcomes by looking at the effect, and say in the response when to retry.",
		References: []string{refDraft},
	},
	{
		ID: FindingAuditMissing, Priority: P1, Basis: Established,
		Title:       "An effect cannot be traced to its request",
		Advice:      "Established when the plan's audit source was read and has no line for the key, request or event id. Without a source it is unknowable.",
		Explanation: "No audit source that was searched has a line with the key or an id of the request. After an incident nobody can tell from them which request caused an effect.",
		Remedy:      "Write one audit line for each attempt, replay and refusal, with key, tenant, actor, operation, outcome and trace id, in the transaction of the effect.",
		References:  []string{refLog},
	},
	{
		ID: FindingWebhookAlteredAccepted, Priority: P0, Basis: Established,
		Title:       "An altered event with a used signature was accepted",
		Advice:      "Established when the altered body's effect was seen. A 2xx without an effect: inferred, and P1.",
		Explanation: "The event's body was changed after it had been signed, and it took effect. Anyone who can send to the endpoint can forge events.",
		Inferred: Words{
			"An altered event with a used signature was answered with success",
			"The event's body was changed after it had been signed, and the response is a success. No effect was seen: that the event was accepted is inferred.",
		},
		Remedy:     "Verify the signature over the raw bytes of the body, with a comparison in constant time, before anything is parsed.",
		References: []string{refSign},
	},
	{
		ID: FindingWebhookStaleAccepted, Priority: P1, Basis: Established,
		Title:       "An old, correctly signed event was accepted",
		Advice:      "Established when an event signed longer ago than the tolerance took effect. If the scheme signs no time, it cannot be tested.",
		Explanation: "A delivery whose signed time is far in the past took effect. Anyone who has recorded a delivery can send it again once its event id has been forgotten.",
		Remedy:      "Refuse deliveries whose signed time is outside the tolerance, usually five minutes. Keep event ids for longer than that and for longer than the sender retries.",
		References:  []string{refReplay, refSign},
	},
	{
		ID: FindingRateLimitIsNotIdempotency, Priority: P1, Basis: Established,
		Title:       "Only a rate limit kept duplicates from taking effect",
		Advice:      "Established when duplicates were refused with 429 and, spaced out, took effect again.",
		Explanation: "Duplicates that came quickly were refused with 429, and one that came later took effect. A rate limit counts requests and does not know which are the same.",
		Remedy:      "Keep the rate limit, and deduplicate by key or by content behind it. Let requests refused by the limit leave no record.",
		References:  []string{ref429, refOnce},
	},
	{
		ID: FindingRetentionNotPublished, Priority: P2, Basis: Established,
		Title:       "It is not documented how long keys are remembered",
		Advice:      "Established when the specification was read and is silent, and responses carry no expiry. An unread specification: unknowable.",
		Explanation: "Neither the specification that the plan names nor any response says how long a key protects; the specification was searched for the usual words. A client that retries after the weekend cannot know whether it repeats the operation.",
		Remedy:      "Document the retention and the response to an expired key. Better still, send the expiry time with each protected response. Keep keys for longer than clients retry.",
		References:  []string{refDraft},
	},
	{
		ID: FindingNoSpecification, Priority: P2, Basis: Established,
		Title:       "The specification does not say how duplicates are recognised",
		Advice:      "Established for the places that were searched; name them. It may be documented elsewhere.",
		Explanation: "For this operation, the document that the plan names has none of the words that usually describe how duplicates are recognised: whether keys are required, their syntax, their scope, what a duplicate gets. Clients have to guess.",
		Remedy:      "Describe for each operation where the key goes, its syntax, whether it is required, its scope, its retention, and the responses to a replay, a mismatch, a request in progress and a missing key.",
		References:  []string{refDraft},
	},
}
