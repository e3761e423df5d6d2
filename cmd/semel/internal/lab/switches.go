package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Requirement says whether an operation reads an Idempotency-Key.
type Requirement string

const (
	KeyRequired Requirement = "required"
	KeyOptional Requirement = "optional"
	KeyIgnored  Requirement = "none"
)

// Switches are the defences of one operation, and what goes wrong around it. The
// zero value has no defence at all.
type Switches struct {
	Key Requirement `json:"key"`

	Scope       bool `json:"scope"`       // a key is its caller's, and this operation's
	InProgress  bool `json:"in_progress"` // the key is taken before the work begins
	Replay      bool `json:"replay"`      // a repeated request gets the first response
	Fingerprint bool `json:"fingerprint"` // another body under the same key is refused
	Failures    bool `json:"failures"`    // a failed request is remembered too
	Unique      bool `json:"unique"`      // the database accepts each reference once
	Outbox      bool `json:"outbox"`      // mails and webhooks are enqueued in the transaction of the effect
	Transaction bool `json:"transaction"` // what belongs to the effect is committed together
	Lease       bool `json:"lease"`       // the key's lock lasts as long as the work, by one clock
	Queue       bool `json:"queue"`       // jobs are rows in the database
	RateLimit   bool `json:"rate_limit"`  // a caller is slowed down after a few requests

	Before       Milliseconds `json:"before_ms"`   // between the look for the key and the effect
	After        Milliseconds `json:"after_ms"`    // between the effect and the response
	LoseResponse bool         `json:"lose_answer"` // the first response for each reference gets lost
	FailAfter    bool         `json:"fail_after"`  // the first response for each reference is 500, after the effect
	Crash        bool         `json:"crash"`       // the app's process is killed midway in the first request for each reference
	Redeliver    bool         `json:"redeliver"`   // the lab's provider delivers each event once more
	ClockSkew    bool         `json:"clock_skew"`  // repeated requests meet an instance whose clock is a day ahead
}

// Milliseconds is a duration as the page and the API show it.
type Milliseconds int

func (m Milliseconds) duration() time.Duration { return time.Duration(m) * time.Millisecond }

// MostDelay bounds Before and After. Longer ones would only hold connections.
const MostDelay Milliseconds = 30_000

func (s Switches) validate() error {
	var errs []error
	if !slices.Contains([]Requirement{KeyRequired, KeyOptional, KeyIgnored}, s.Key) {
		errs = append(errs, fmt.Errorf("key is %q: want required, optional or none", s.Key))
	}
	for _, d := range []struct {
		name string
		of   Milliseconds
	}{{"before_ms", s.Before}, {"after_ms", s.After}} {
		if d.of < 0 || d.of > MostDelay {
			errs = append(errs, fmt.Errorf("%s is %d: want 0 to %d", d.name, d.of, MostDelay))
		}
	}
	return errors.Join(errs...)
}

// semels reports whether the operation is protected by semel's own middleware. Of
// the defences, a user of it can only get the key, its scope and the fingerprint
// wrong; without the others it is the code of homemade.go that runs.
func (s Switches) semels() bool {
	return s.Key != KeyIgnored && s.InProgress && s.Replay && s.Failures && s.Lease
}

// Toggle is a switch that is on or off, as pages and programs list them.
type Toggle struct {
	Name    string // as in JSON
	Fault   bool   // something that goes wrong, rather than a defence against it
	Defence string // what it does when it is on
	Without string // what can happen when it is off, or while the fault is on
	of      func(*Switches) *bool
}

// On reports whether it is on in s.
func (t Toggle) On(s Switches) bool { return *t.of(&s) }

// Toggles are all of them, in the order in which a request meets them.
var Toggles = []Toggle{
	{
		"rate_limit", false, "A caller that sends more than five requests in a second is asked to wait.",
		"A client that retries in a loop is limited only by its connection.", func(s *Switches) *bool { return &s.RateLimit },
	},
	{
		"scope", false, "A key belongs to the caller, the tenant and the operation that first used it.",
		"A caller that sends a key that somebody else has used gets their response, or is refused.", func(s *Switches) *bool { return &s.Scope },
	},
	{
		"in_progress", false, "The key is claimed before the work begins. A duplicate that comes meanwhile is told that the first is in progress.",
		"Two requests that overlap both look the key up, both find nothing, and both do the work.", func(s *Switches) *bool { return &s.InProgress },
	},
	{
		"fingerprint", false, "The same key with another body is refused.",
		"A client that reuses a key for something else gets the old response and believes that the new request was done.", func(s *Switches) *bool { return &s.Fingerprint },
	},
	{
		"replay", false, "A repeated request gets the response of the first.",
		"A client whose response was lost is told that the key is used up, and never learns what it bought.", func(s *Switches) *bool { return &s.Replay },
	},
	{
		"failures", false, "A request that failed is remembered as well: nobody knows how far it got.",
		"The key of a failed request is free again. If the effect had happened before it failed, the retry doubles it.", func(s *Switches) *bool { return &s.Failures },
	},
	{
		"unique", false, "The database accepts each reference once. This is the last line of defence, and it needs no key.",
		"Nothing below the service notices the second request.", func(s *Switches) *bool { return &s.Unique },
	},
	{
		"outbox", false, "Mail and webhook are rows in the transaction of the effect, and are sent once it is committed.",
		"Mail and webhook are sent by the handler, even if the transaction fails afterwards, and again by each retry.", func(s *Switches) *bool { return &s.Outbox },
	},
	{
		"transaction", false, "What belongs to the effect is committed together, or not at all.",
		"It is done in two halves. A crash between them leaves a draft behind.", func(s *Switches) *bool { return &s.Transaction },
	},
	{
		"lease", false, "The lock on the key is renewed while the work goes on, and the store's clock decides.",
		"The lock expires after 200 ms by the clock of the instance that took it, even if the work takes longer. Keys expire after a day by the clock of the instance that looks.", func(s *Switches) *bool { return &s.Lease },
	},
	{
		"queue", false, "A job is a row in the database, and is done in the transaction that marks it as done.",
		"Jobs wait in the memory of the process and are lost with it. A job that fails after its effect is done again.", func(s *Switches) *bool { return &s.Queue },
	},
	{
		"lose_answer", true, "The first response for each reference is lost on the way.",
		"The client cannot tell whether anything happened.", func(s *Switches) *bool { return &s.LoseResponse },
	},
	{
		"fail_after", true, "The first request for each reference fails with 500 after its effect is committed.",
		"An error does not say that nothing happened.", func(s *Switches) *bool { return &s.FailAfter },
	},
	{
		"crash", true, "The app's process is killed in the middle of the first request for each reference, and restarted.",
		"What was in its memory is gone; what it had done is not.", func(s *Switches) *bool { return &s.Crash },
	},
	{
		"redeliver", true, "The provider delivers each webhook once more, as if it had not received the response.",
		"A service that expects each event once handles it twice.", func(s *Switches) *bool { return &s.Redeliver },
	},
	{
		"clock_skew", true, "For each reference, all requests but the first reach an instance whose clock is 25 hours ahead.",
		"Whatever expires by an instance's own clock has expired there.", func(s *Switches) *bool { return &s.ClockSkew },
	},
}

// Preset is a setting of all switches with a name.
type Preset struct {
	Name, Title, Lesson string
	Switches            Switches
}

// Presets begin with the one that is used if none is named.
var Presets = []Preset{
	{"unprotected", "No defence", "Each request that arrives is carried out.", Switches{Key: KeyIgnored}},
	{
		"unique", "Unique constraint only", "The database refuses the second, whoever sends it. The client is left with an error.",
		Switches{Key: KeyIgnored, Unique: true, Transaction: true},
	},
	{
		"tutorial", "As in most tutorials", "Look the key up, do the work, store the response. It holds until two requests overlap, or two customers use one key.",
		Switches{Key: KeyOptional, Replay: true, Transaction: true},
	},
	{
		"homemade", "Made with care", "The key is claimed first and bound to its caller. A failed request is forgotten, and that is the hole.",
		Switches{Key: KeyRequired, Scope: true, InProgress: true, Replay: true, Fingerprint: true, Transaction: true, Lease: true},
	},
	{
		"semel", "semel", "One effect for each key, one response, and no mail without the effect.",
		Switches{Key: KeyRequired, Scope: true, InProgress: true, Replay: true, Fingerprint: true, Failures: true, Unique: true, Outbox: true, Transaction: true, Lease: true, Queue: true},
	},
}

// FindPreset returns the preset with this name.
func FindPreset(name string) (Preset, error) {
	var names []string
	for _, p := range Presets {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Preset{}, fmt.Errorf("there is no preset %q: want one of %s", name, strings.Join(names, ", "))
}

// change returns s with what the JSON in text says otherwise.
func (s Switches) change(text []byte) (Switches, error) {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("the switches are not understood: %w", err)
	}
	return s, s.validate()
}
