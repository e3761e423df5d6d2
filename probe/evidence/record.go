package evidence

import (
	_ "embed"
	"slices"
	"time"
)

// RecordSchema is the name and version of the form of records.
const RecordSchema = "semel-probe-record/1"

//go:embed record.schema.json
var recordSchema []byte

// RecordJSONSchema returns the JSON Schema of [Records].
func RecordJSONSchema() []byte { return slices.Clone(recordSchema) }

// Records are the least that is worth keeping of a run: for each operation the
// verdict and its grounds. They hold no secrets.
type Records struct {
	Schema     string    `json:"schema"` // RecordSchema
	Run        string    `json:"run"`
	Version    string    `json:"version"` // of the program
	Plan       string    `json:"plan"`
	Started    time.Time `json:"started"`
	Ended      time.Time `json:"ended"`
	Sent       int       `json:"sent"`
	DryRun     bool      `json:"dry_run"`
	Incomplete string    `json:"interrupted,omitempty"`
	Records    []Record  `json:"records"`
	// Guidelines are the entries of guidelines under which there are findings.
	Guidelines []RecordGuideline `json:"guidelines"`
}

// RecordGuideline is an entry of a guideline, and the findings that have it.
type RecordGuideline struct {
	Standard string      `json:"standard"`
	ID       string      `json:"id"`
	Findings []FindingID `json:"findings"` // ids, each once
}

// Record is what was found out about one operation.
type Record struct {
	Operation string `json:"operation"`
	Method    string `json:"method"`
	URL       string `json:"url"`
	Contract  string `json:"contract"`
	// Key is the normalised verdict key. Verdict is the same as fields.
	Key        string          `json:"key"`
	Verdict    Verdict         `json:"verdict"`
	Witnesses  []Witnesses     `json:"witnesses"`
	Findings   []RecordFinding `json:"findings"`
	Hypotheses []Standing      `json:"hypotheses"`
}

// RecordFinding is a finding without its texts.
type RecordFinding struct {
	ID         FindingID   `json:"id"`
	Priority   Priority    `json:"priority"`
	Basis      Basis       `json:"basis"`
	Experiment string      `json:"experiment"`
	Sends      []int       `json:"sends"`
	Symptoms   []FindingID `json:"symptoms"` // ids of findings of the same cause
	Guidelines Guidelines  `json:"guidelines"`
}

// Records returns the records of the run.
func (r *Run) Records() Records {
	all := Records{
		Schema: RecordSchema, Run: r.ID, Version: r.Version, Plan: r.Plan, Started: r.Started, Ended: r.Ended,
		Sent: r.Sent, DryRun: r.DryRun, Incomplete: r.Interrupted, Records: []Record{}, Guidelines: []RecordGuideline{},
	}
	for _, g := range SumGuidelines(r.Operations) {
		all.Guidelines = append(all.Guidelines, RecordGuideline{g.Standard, g.ID, g.Findings})
	}
	for i := range r.Operations {
		o := &r.Operations[i]
		rec := Record{
			Operation: o.Name, Method: o.Method, URL: o.URL, Contract: o.Profile, Key: o.Verdict.Key(), Verdict: o.Verdict,
			Witnesses: append([]Witnesses{}, o.Witnesses()...), Findings: []RecordFinding{}, Hypotheses: o.Standings(),
		}
		for _, f := range o.Findings {
			symptoms := []FindingID{}
			for _, s := range f.Symptoms {
				symptoms = append(symptoms, s.ID)
			}
			rec.Findings = append(rec.Findings, RecordFinding{f.ID, f.Priority, f.Basis, f.Experiment, append([]int{}, f.Sends...), symptoms, f.GuidelinesOf()})
		}
		all.Records = append(all.Records, rec)
	}
	return all
}
