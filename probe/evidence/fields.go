package evidence

import "fmt"

// Field is a field of a verdict, with its meaning.
type Field struct {
	Name    string
	Value   string
	Meaning string // of the field
	Says    string // meaning of the value; empty for values that are not known
}

// Fields returns the ten fields in their order.
func (v Verdict) Fields() []Field {
	all := make([]Field, 0, len(verdictFields)+1)
	for _, f := range verdictFields {
		value := *f.get(&v)
		all = append(all, Field{f.name, value, fieldMeanings[f.name].meaning, fieldMeanings[f.name].values[value]})
	}
	return append(all, Field{"confidence", fmt.Sprintf("%.2f", v.Confidence), "How much of the verdict rests on what was seen, from 0 to 1. It is no probability.", ""})
}

var fieldMeanings = map[string]struct {
	meaning string
	values  map[string]string
}{
	"idempotency_support": {"By what the target recognises a duplicate.", map[string]string{
		"header_key":  "A key that the client sends with the request.",
		"natural_key": "Business fields of the request itself.",
		"event_id":    "The id of a delivered event.",
		"none":        "A duplicate took effect again.",
		"unknown":     "It was not shown.",
	}},
	"key_scope_binding": {"Whom a key belongs to.", map[string]string{
		"tenant+actor+operation": "The same key from another tenant or actor is another key.",
		"partial":                "Some of tenant, actor and operation separate keys, not all.",
		"weak":                   "Parties that should not share a key do.",
		"unknown":                "It was not shown, or there is no key.",
	}},
	"result_replay": {"What a duplicate of a completed request gets.", map[string]string{
		"same_response":           "The first result, even if the response has another form.",
		"conflict_with_reference": "A refusal that names what the first request made.",
		"unstable":                "Different results, or errors.",
		"unknown":                 "It was not shown, or it is a refusal that does not name the first result, or it is another effect.",
	}},
	"in_progress_handling": {"Whether a duplicate is recognised while the first still runs.", map[string]string{
		"yes":     "It waits, or is told that the first is in progress.",
		"no":      "It is executed, or is answered as if it had failed.",
		"unknown": "It was not tried, or the first was not seen running when the second came, or the response does not tell whether the second was recognised by then.",
	}},
	"atomicity": {"What keeps effect and record together.", map[string]string{
		"db_unique":  "A unique constraint decides.",
		"tx_lock":    "A lock in the transaction decides.",
		"optimistic": "A conditional update decides.",
		"none":       "Nothing that holds for requests at the same time.",
		"unknown":    "It cannot be seen from outside, and the plan gave no evidence.",
	}},
	"race_behavior": {"What happens when duplicates run at the same time.", map[string]string{
		"safe_converge": "No overlapping trial doubled the effect; the bound says what that leaves open.",
		"double_apply":  "More than one took effect.",
		"unknown":       "It was not tried, or no two overlapped and were read.",
	}},
	"outbox_pattern": {"Whether effects outside the database follow its commit.", map[string]string{
		"yes":     "Sent once for each effect, and none without one.",
		"no":      "Doubled, lost, or sent for what was rolled back.",
		"unknown": "It cannot be seen from outside, and the plan gave no sink.",
	}},
	"retry_behavior": {"What a retry does, after a lost response or a failure or while the first still runs.", map[string]string{
		"safe_stop":    "It ends with one effect: the retry gets the result, or is refused as a duplicate, or is told to wait.",
		"unsafe_retry": "In some case it doubles or loses the effect, or its response does not tell that the effect is there.",
		"unknown":      "It was not shown.",
	}},
	"audit_strength": {"Whether effects can be traced to requests.", map[string]string{
		"strong":  "Key, actor and outcome of each attempt.",
		"partial": "Some of it.",
		"weak":    "Nothing that connects effect and request.",
		"unknown": "No audit source was read.",
	}},
}
