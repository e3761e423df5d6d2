package evidence

import (
	"cmp"
	"slices"
	"strings"
)

// Guidelines are the ids of a kind of finding in common guidelines. Each of the
// five has at least one entry, and [Guideline] explains every entry.
type Guidelines struct {
	ASVS   []string `json:"asvs"`   // requirements of OWASP ASVS 5.0.0
	WSTG   []string `json:"wstg"`   // tests of the OWASP Web Security Testing Guide
	PTES   []string `json:"ptes"`   // phases of the Penetration Testing Execution Standard
	ATTACK []string `json:"attack"` // tactics of MITRE ATT&CK for Enterprise
	CWE    []string `json:"cwe"`
}

// Standards returns the names of the guidelines with their versions, in the
// order of the reports.
func Standards() []string {
	return []string{"OWASP ASVS 5.0.0", "OWASP WSTG", "PTES", "MITRE ATT&CK Enterprise", "CWE"}
}

// Lists returns the entries in the order of [Standards].
func (g Guidelines) Lists() [][]string { return [][]string{g.ASVS, g.WSTG, g.PTES, g.ATTACK, g.CWE} }

// All returns the entries of all guidelines.
func (g Guidelines) All() []string { return slices.Concat(g.Lists()...) }

// GuidelinesOf returns the finding's ids in the guidelines. For a run that was
// written by an earlier version they are taken from the catalogue.
func (f Finding) GuidelinesOf() Guidelines {
	if len(f.Guidelines.All()) > 0 {
		return f.Guidelines
	}
	e, _ := Lookup(f.ID)
	return e.Guidelines
}

// GuidelineEntry is an entry of a guideline.
type GuidelineEntry struct {
	ID       string
	Standard string // one of Standards
	Title    string // shortened if the guideline's is long
	URL      string
}

// Guideline returns the entry of an id that the catalogue uses.
func Guideline(id string) (GuidelineEntry, bool) {
	e, ok := guidelines[id]
	return e, ok
}

var guidelines = map[string]GuidelineEntry{}

func init() {
	add := func(standard int, url, id, title string) {
		guidelines[id] = GuidelineEntry{ID: id, Standard: Standards()[standard], Title: title, URL: url}
	}
	for file, list := range map[string][][2]string{
		"0x11-V2-Validation-and-Business-Logic": {
			{asvsLimitsDocumented, "Expectations for limits and validation of business logic are documented"},
			{asvsInput, "Input is validated against what is expected of it"},
			{asvsCombined, "Combinations of related data are reasonable by defined rules"},
			{asvsLimits, "Limits of business logic are implemented as documented"},
			{asvsWhole, "A business operation succeeds as a whole or is rolled back"},
			{asvsLocking, "Locking keeps limited resources from being booked twice"},
			{asvsAutomation, "Excessive calls of application functions are prevented"},
		},
		"0x13-V4-API-and-Web-Service": {{asvsSigned, "Highly sensitive requests carry signatures of their own"}},
		"0x17-V8-Authorization": {
			{asvsObject, "Data is accessible to those only who have permission for the item"},
			{asvsTenant, "Operations of a consumer never affect tenants without permission"},
		},
		"0x24-V15-Secure-Coding-and-Architecture": {
			{asvsFields, "Only the required fields of an object are returned"},
			{asvsAtomic, "A check and the action that depends on it are one atomic operation"},
			{asvsLocks, "Locks do not get stuck"},
		},
		"0x25-V16-Security-Logging-and-Error-Handling": {
			{asvsLogEntry, "Log entries say when, where, who and what"},
			{asvsLogBypass, "Attempts to bypass business logic are logged"},
			{asvsMessage, "Errors are told in general words, without internal data"},
			{asvsOutage, "The application stays secure when an external resource fails"},
			{asvsFail, "The application fails gracefully and securely, never open"},
		},
	} {
		for _, r := range list {
			add(0, "https://github.com/OWASP/ASVS/blob/master/5.0/en/"+file+".md", r[0], r[1])
		}
	}
	const wstg = "https://owasp.org/www-project-web-security-testing-guide/"
	for folder, list := range map[string][][2]string{
		"01-Information_Gathering":                           {{wstgEntryPoints, "Identify application entry points"}},
		"02-Configuration_and_Deployment_Management_Testing": {{wstgPlatform, "Test application platform configuration (logging)"}},
		"05-Authorization_Testing": {
			{wstgAuthorization, "Testing for bypassing authorization schema"},
			{wstgReferences, "Testing for insecure direct object references"},
		},
		"08-Testing_for_Error_Handling": {{wstgErrors, "Testing for improper error handling"}},
		"10-Business_Logic_Testing": {
			{wstgData, "Test business logic data validation"},
			{wstgForge, "Test ability to forge requests"},
			{wstgIntegrity, "Test integrity checks"},
			{wstgTiming, "Test for process timing"},
			{wstgTimes, "Test number of times a function can be used limits"},
			{wstgMisuse, "Test defenses against application misuse"},
		},
	} {
		for _, t := range list {
			add(1, wstg+"v42/4-Web_Application_Security_Testing/"+folder+"/README", t[0], t[1])
		}
	}
	// It came after version 4.2.
	add(1, wstg+"latest/4-Web_Application_Security_Testing/10-Business_Logic_Testing/11-Testing_for_Race_Conditions", wstgRace, "Testing for race conditions")
	add(2, "http://www.pentest-standard.org/index.php/Intelligence_Gathering", ptesGathering, "What the target tells of itself")
	add(2, "http://www.pentest-standard.org/index.php/Vulnerability_Analysis", ptesAnalysis, "A weakness was found")
	add(2, "http://www.pentest-standard.org/index.php/Exploitation", ptesExploitation, "A weakness was used, and not only found")
	for id, title := range map[string]string{tacticReconnaissance: "Reconnaissance", tacticAccess: "Initial Access", tacticCollection: "Collection", tacticImpact: "Impact"} {
		add(3, "https://attack.mitre.org/tactics/"+id+"/", id, title)
	}
	for id, title := range map[string]string{
		refLeak:    "Exposure of Sensitive Information to an Unauthorized Actor",
		"CWE-209":  "Generation of Error Message Containing Sensitive Information",
		refReplay:  "Authentication Bypass by Capture-replay",
		"CWE-345":  "Insufficient Verification of Data Authenticity",
		refSign:    "Improper Verification of Cryptographic Signature",
		refRace:    "Concurrent Execution using Shared Resource with Improper Synchronization ('Race Condition')",
		"CWE-367":  "Time-of-check Time-of-use (TOCTOU) Race Condition",
		"CWE-393":  "Return of Wrong Status Code",
		"CWE-440":  "Expected Behavior Violation",
		"CWE-460":  "Improper Cleanup on Thrown Exception",
		"CWE-488":  "Exposure of Data Element to Wrong Session",
		"CWE-636":  "Not Failing Securely ('Failing Open')",
		refOwner:   "Authorization Bypass Through User-Controlled Key",
		"CWE-755":  "Improper Handling of Exceptional Conditions",
		refLog:     "Insufficient Logging",
		"CWE-799":  "Improper Control of Interaction Frequency",
		refOnce:    "Improper Enforcement of a Single, Unique Action",
		"CWE-1059": "Insufficient Technical Documentation",
		"CWE-1286": "Improper Validation of Syntactic Correctness of Input",
	} {
		add(4, "https://cwe.mitre.org/data/definitions/"+strings.TrimPrefix(id, "CWE-")+".html", id, title)
	}
}

const (
	asvsLimitsDocumented = "v5.0.0-2.1.3"
	asvsInput            = "v5.0.0-2.2.1"
	asvsCombined         = "v5.0.0-2.2.3"
	asvsLimits           = "v5.0.0-2.3.2"
	asvsWhole            = "v5.0.0-2.3.3"
	asvsLocking          = "v5.0.0-2.3.4"
	asvsAutomation       = "v5.0.0-2.4.1"
	asvsSigned           = "v5.0.0-4.1.5"
	asvsObject           = "v5.0.0-8.2.2"
	asvsTenant           = "v5.0.0-8.4.1"
	asvsFields           = "v5.0.0-15.3.1"
	asvsAtomic           = "v5.0.0-15.4.2"
	asvsLocks            = "v5.0.0-15.4.3"
	asvsLogEntry         = "v5.0.0-16.2.1"
	asvsLogBypass        = "v5.0.0-16.3.3"
	asvsMessage          = "v5.0.0-16.5.1"
	asvsOutage           = "v5.0.0-16.5.2"
	asvsFail             = "v5.0.0-16.5.3"

	wstgEntryPoints   = "WSTG-v42-INFO-06"
	wstgPlatform      = "WSTG-v42-CONF-02"
	wstgAuthorization = "WSTG-v42-ATHZ-02"
	wstgReferences    = "WSTG-v42-ATHZ-04"
	wstgErrors        = "WSTG-v42-ERRH-01"
	wstgData          = "WSTG-v42-BUSL-01"
	wstgForge         = "WSTG-v42-BUSL-02"
	wstgIntegrity     = "WSTG-v42-BUSL-03"
	wstgTiming        = "WSTG-v42-BUSL-04"
	wstgTimes         = "WSTG-v42-BUSL-05"
	wstgMisuse        = "WSTG-v42-BUSL-07"
	wstgRace          = "WSTG-BUSL-11"

	ptesGathering    = "Intelligence Gathering"
	ptesAnalysis     = "Vulnerability Analysis"
	ptesExploitation = "Exploitation"

	tacticReconnaissance = "TA0043"
	tacticAccess         = "TA0001"
	tacticCollection     = "TA0009"
	tacticImpact         = "TA0040"
)

// mapping is what the guidelines call each kind of finding: ASVS, WSTG, PTES,
// ATT&CK and CWE, with spaces between several.
var mapping = map[FindingID][5]string{
	FindingDoubleEffectSequential:          {asvsLimits + " " + asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingDoubleEffectRace:                {asvsLocking + " " + asvsAtomic, wstgRace, ptesExploitation, tacticImpact, refRace + " CWE-367 " + refOnce},
	FindingDoubleEffectLostResponse:        {asvsWhole + " " + asvsOutage, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingLostEffect:                      {asvsWhole, wstgIntegrity, ptesExploitation, tacticImpact, "CWE-393"},
	FindingChangeNotMade:                   {asvsWhole, wstgIntegrity, ptesExploitation, tacticImpact, "CWE-393"},
	FindingKeylessRequestsConfused:         {asvsCombined + " " + asvsWhole, wstgIntegrity, ptesExploitation, tacticImpact, "CWE-393 CWE-488"},
	FindingOutsideEffectDoubled:            {asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingWebhookRedeliveryDoubles:        {asvsLimits + " " + asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingMismatchExecuted:                {asvsLimits + " " + asvsCombined, wstgIntegrity, ptesExploitation, tacticImpact, refOnce},
	FindingKeyNotScopedTenant:              {asvsTenant + " " + asvsObject, wstgAuthorization + " " + wstgReferences, ptesExploitation, tacticCollection, refOwner + " CWE-488"},
	FindingInFlightExecuted:                {asvsLocking + " " + asvsAtomic, wstgRace + " " + wstgTiming, ptesExploitation, tacticImpact, refRace + " " + refOnce},
	FindingWebhookAlteredAccepted:          {asvsSigned, wstgForge + " " + wstgIntegrity, ptesExploitation, tacticAccess, refSign + " CWE-345"},
	FindingKeyIgnored:                      {asvsLimits, wstgTimes, ptesAnalysis, tacticImpact, refOnce},
	FindingKeyNotScopedActor:               {asvsObject, wstgAuthorization + " " + wstgReferences, ptesExploitation, tacticCollection, refOwner + " CWE-488"},
	FindingConflictLeaksPayload:            {asvsMessage + " " + asvsFields, wstgErrors, ptesAnalysis, tacticCollection, refLeak + " CWE-209"},
	FindingMismatchReplayedAsSame:          {asvsCombined, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-393"},
	FindingReplayDiffers:                   {asvsWhole, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-440"},
	FindingMissingKeyAccepted:              {asvsInput + " " + asvsLimits, wstgData, ptesAnalysis, tacticImpact, refOnce},
	FindingMalformedKeyAcceptedUnprotected: {asvsInput + " " + asvsFail, wstgData, ptesAnalysis, tacticImpact, "CWE-1286 CWE-636"},
	FindingInFlightErrorInvitesNewKey:      {asvsFail, wstgErrors + " " + wstgTiming, ptesAnalysis, tacticImpact, "CWE-755"},
	FindingUnstable5xxOnDuplicate:          {asvsFail, wstgErrors, ptesAnalysis, tacticImpact, "CWE-755"},
	FindingFailureNotRepeatable:            {asvsWhole + " " + asvsFail, wstgErrors, ptesAnalysis, tacticImpact, "CWE-755"},
	FindingFailureBlocksKey:                {asvsFail + " " + asvsLocks, wstgErrors, ptesAnalysis, tacticImpact, "CWE-460"},
	FindingAuditMissing:                    {asvsLogEntry + " " + asvsLogBypass, wstgPlatform, ptesAnalysis, tacticImpact, refLog},
	FindingWebhookStaleAccepted:            {asvsSigned, wstgForge + " " + wstgTiming, ptesExploitation, tacticAccess, refReplay},
	FindingRateLimitIsNotIdempotency:       {asvsLimits + " " + asvsAutomation, wstgTimes + " " + wstgMisuse, ptesAnalysis, tacticImpact, refOnce + " CWE-799"},
	FindingEffectsDisagree:                 {asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingContentNotRecognised:            {asvsLimits + " " + asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingDuplicateNotAnswered:            {asvsFail, wstgErrors, ptesAnalysis, tacticImpact, "CWE-755"},
	FindingReplayRefused:                   {asvsLimitsDocumented, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-440"},
	FindingBadKeyServerError:               {asvsInput + " " + asvsFail, wstgData + " " + wstgErrors, ptesAnalysis, tacticImpact, "CWE-755 CWE-1286"},
	FindingInstanceDoubles:                 {asvsLocking + " " + asvsWhole, wstgRace + " " + wstgTimes, ptesExploitation, tacticImpact, refRace + " " + refOnce},
	FindingSameMeaningExecuted:             {asvsLimits + " " + asvsWhole, wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingTruncatedExecuted:               {asvsInput + " " + asvsWhole, wstgData + " " + wstgIntegrity, ptesExploitation, tacticImpact, "CWE-393"},
	FindingRefusalExecuted:                 {asvsWhole + " " + asvsFail, wstgErrors + " " + wstgIntegrity, ptesExploitation, tacticImpact, "CWE-393"},
	FindingPreviewUsesKey:                  {asvsCombined, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-393"},
	FindingPreviewExecuted:                 {asvsWhole, wstgIntegrity, ptesExploitation, tacticImpact, "CWE-440"},
	FindingKeyNotScopedOperation:           {asvsLimits + " " + asvsCombined, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-393"},
	FindingKeyForgotten:                    {asvsLimits + " " + asvsLimitsDocumented, wstgTimes + " " + wstgTiming, ptesExploitation, tacticImpact, refOnce},
	FindingChangeDoubles:                   {asvsLimits + " " + asvsCombined, wstgIntegrity + " " + wstgTimes, ptesExploitation, tacticImpact, refOnce},
	FindingRefusalSticks:                   {asvsFail, wstgErrors, ptesAnalysis, tacticImpact, "CWE-393"},
	FindingReplayUnmarked:                  {asvsLimitsDocumented, wstgIntegrity, ptesAnalysis, tacticImpact, "CWE-440"},
	FindingRetentionNotPublished:           {asvsLimitsDocumented, wstgEntryPoints, ptesGathering, tacticReconnaissance, "CWE-1059"},
	FindingNoSpecification:                 {asvsLimitsDocumented, wstgEntryPoints, ptesGathering, tacticReconnaissance, "CWE-1059"},
}

// mapped returns the guidelines of a kind of finding.
func mapped(id FindingID) Guidelines {
	m, ok := mapping[id]
	if !ok {
		return Guidelines{}
	}
	return Guidelines{
		ASVS: strings.Fields(m[0]), WSTG: strings.Fields(m[1]), PTES: []string{m[2]}, ATTACK: strings.Fields(m[3]), CWE: strings.Fields(m[4]),
	}
}

// GuidelineSum is an entry of a guideline and the findings of a run under it.
type GuidelineSum struct {
	GuidelineEntry
	Findings []FindingID // ids, each once
}

// SumGuidelines returns the entries that findings and their symptoms have, in
// the order of [Standards] and of their ids.
func SumGuidelines(ops []Operation) []GuidelineSum {
	by := map[string]*GuidelineSum{}
	for _, o := range ops {
		for _, f := range o.flat() {
			for i, list := range f.GuidelinesOf().Lists() {
				for _, id := range list {
					s := by[id]
					if s == nil {
						e, ok := Guideline(id)
						if !ok {
							e = GuidelineEntry{ID: id, Standard: Standards()[i]}
						}
						s = &GuidelineSum{GuidelineEntry: e}
						by[id] = s
					}
					if !slices.Contains(s.Findings, f.ID) {
						s.Findings = append(s.Findings, f.ID)
					}
				}
			}
		}
	}
	sum := make([]GuidelineSum, 0, len(by))
	for _, s := range by {
		sum = append(sum, *s)
	}
	slices.SortFunc(sum, func(a, b GuidelineSum) int {
		return cmp.Or(
			slices.Index(Standards(), a.Standard)-slices.Index(Standards(), b.Standard),
			byNumbers(a.ID, b.ID),
		)
	})
	return sum
}

// byNumbers compares texts, numbers in them by their value: 2.3.4 before 15.4.2.
func byNumbers(a, b string) int {
	for a != "" && b != "" {
		x, restA := number(a)
		y, restB := number(b)
		switch {
		case x > 0 && y > 0:
			if len(a[:x]) != len(b[:y]) {
				return x - y
			}
			if c := strings.Compare(a[:x], b[:y]); c != 0 {
				return c
			}
			a, b = restA, restB
		case a[0] != b[0]:
			return int(a[0]) - int(b[0])
		default:
			a, b = a[1:], b[1:]
		}
	}
	return len(a) - len(b)
}

// number returns how many digits a text begins with, and the rest.
func number(s string) (digits int, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return len(s) - len(rest), rest
}
