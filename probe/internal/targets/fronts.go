package targets

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Finer returns targets for experiments that need a second instance, a second
// operation, a preview, and the like.
func Finer() []Target {
	// A front changes what the API by the draft behind it sees.
	type front func(next http.Handler) http.HandlerFunc
	target := func(name, about string, f front, of plan.Experiment, outcome evidence.Outcome) Target {
		t := draft(name, about, rules{})
		t.make = func() *Service {
			a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker, takes: 20 * time.Millisecond})
			return newService(&a.shop, f(a.handler()))
		}
		t.adapt = finer
		t.Experiments = []plan.Experiment{of, plan.Duplicate}
		return t.outcome(outcomes{of: outcome, plan.Duplicate: held})
	}
	as := func(r *http.Request, suffix string) {
		if key := r.Header.Get("Idempotency-Key"); strings.HasSuffix(key, `"`) {
			r.Header.Set("Idempotency-Key", strings.TrimSuffix(key, `"`)+suffix+`"`)
		}
	}
	plain := func(next http.Handler) http.HandlerFunc { return next.ServeHTTP }
	ownMemory := func(next http.Handler) http.HandlerFunc {
		var once sync.Once
		home := ""
		return func(w http.ResponseWriter, r *http.Request) {
			if once.Do(func() { home = r.Host }); r.Host != home {
				as(r, "-elsewhere")
			}
			next.ServeHTTP(w, r)
		}
	}
	// Refunds are orders by another name.
	refunds := func(suffix string) front {
		return func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/refunds" {
					r.URL.Path = "/orders"
					as(r, suffix)
				}
				next.ServeHTTP(w, r)
			}
		}
	}
	body := func(r *http.Request) []byte {
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			b = append(b, '}') // as one that does not look at errors would have it
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		return b
	}
	canonical := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var v any
			if json.Unmarshal(body(r), &v) == nil {
				b, _ := json.Marshal(v)
				r.Body = io.NopCloser(bytes.NewReader(b))
			}
			next.ServeHTTP(w, r)
		}
	}
	byBytes := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			sum := sha256.Sum256(body(r))
			as(r, hex.EncodeToString(sum[:8]))
			next.ServeHTTP(w, r)
		}
	}
	remembers := func(next http.Handler) http.HandlerFunc {
		var mu sync.Mutex
		refused := map[string]bool{}
		return func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("Idempotency-Key")
			invalid := bytes.Contains(body(r), []byte(`"quantity":0`))
			mu.Lock()
			refused[key] = refused[key] || invalid && key != ""
			sticks := refused[key]
			mu.Unlock()
			if sticks {
				problem(w, http.StatusBadRequest, "reference and quantity are needed")
				return
			}
			next.ServeHTTP(w, r)
		}
	}
	checks := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.FormValue("dry_run") != "true":
				next.ServeHTTP(w, r)
			case r.Header.Get("Idempotency-Key") == "":
				problem(w, http.StatusBadRequest, "a key is required")
			default:
				writeJSON(w, http.StatusOK, map[string]bool{"valid": true})
			}
		}
	}
	lies := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("dry_run") != "true" {
				next.ServeHTTP(w, r)
				return
			}
			as(r, "-dry")
			next.ServeHTTP(httptest.NewRecorder(), r)
			writeJSON(w, http.StatusOK, map[string]bool{"valid": true})
		}
	}
	// burns keeps what a preview was answered with under its key, and answers the
	// operation with it, or refuses that.
	burns := func(refuse bool) front {
		return func(next http.Handler) http.HandlerFunc {
			var mu sync.Mutex
			used := map[string]bool{}
			return func(w http.ResponseWriter, r *http.Request) {
				key, dry := r.Header.Get("Idempotency-Key"), r.FormValue("dry_run") == "true"
				mu.Lock()
				used[key] = used[key] || dry && key != ""
				before := used[key]
				mu.Unlock()
				switch {
				case dry, before && !refuse:
					writeJSON(w, http.StatusOK, map[string]bool{"valid": true})
				case before:
					problem(w, http.StatusUnprocessableEntity, "the key was used for another request")
				default:
					next.ServeHTTP(w, r)
				}
			}
		}
	}
	forgets := func(next http.Handler) http.HandlerFunc {
		var mu sync.Mutex
		since := map[string]time.Time{}
		return func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("Idempotency-Key")
			mu.Lock()
			first, known := since[key]
			if !known {
				since[key] = time.Now()
			}
			mu.Unlock()
			if known && time.Since(first) > 12*time.Second {
				as(r, "-forgotten")
			}
			next.ServeHTTP(w, r)
		}
	}
	begins := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b := body(r)
			if !bytes.Contains(b, []byte(`"quantity":0`)) {
				next.ServeHTTP(w, r)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(bytes.Replace(b, []byte(`"quantity":0`), []byte(`"quantity":1`), 1)))
			next.ServeHTTP(httptest.NewRecorder(), r)
			problem(w, http.StatusBadRequest, "reference and quantity are needed")
		}
	}
	lenient := func(next http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_ = body(r)
			next.ServeHTTP(w, r)
		}
	}
	scope := verdict{"key_scope_binding": {"tenant+actor+operation"}}
	partial := verdict{"key_scope_binding": {"partial"}}

	apart := target("operations-apart", "keys belong to an operation", refunds("-refund"), plan.OtherOperation, held)
	share := target("operations-share-keys", "a key that was used for another operation is refused", refunds(""), plan.OtherOperation, held)
	for _, t := range []*Target{&apart, &share} {
		t.Experiments = append(t.Experiments, plan.OtherActor, plan.OtherTenant)
	}
	apart.Expect.Verdict, share.Expect.Verdict = scope, partial
	crossed := target("operations-answer-each-other", "a key that was used for another operation is answered with its result", refunds(""), plan.OtherOperation, broken).
		finds("key-not-scoped-operation")
	crossed.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker, noCompare: replays})
		return newService(&a.shop, refunds("")(a.handler()))
	}
	natural := orders("natural-changed", "knows an order by its reference, and refuses a changed one", nil,
		plan.Contract{Profile: "custom", Replay: "reference", FreshKey: "refused"}, rules{natural: true})
	natural.adapt = finer
	natural.Experiments = []plan.Experiment{plan.Duplicate, plan.Altered, plan.RaceSame}
	natural = natural.outcome(outcomes{plan.Altered: held, plan.Duplicate: held, plan.RaceSame: held}).
		verdict("atomicity", "db_unique", "race_behavior", "safe_converge")
	changed := orders("natural-by-bytes", "knows an order by all of its bytes", nil,
		plan.Contract{Profile: "custom"}, rules{}).finds("change-doubles")
	changed.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key"})
		return newService(&a.shop, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				sum := sha256.Sum256(body(r))
				r.Header.Set("Idempotency-Key", `"`+hex.EncodeToString(sum[:])+`"`)
			}
			a.handler().ServeHTTP(w, r)
		}))
	}
	changed.Experiments = []plan.Experiment{plan.Duplicate, plan.Altered}
	changed = changed.outcome(outcomes{plan.Altered: broken, plan.Duplicate: held})

	// One cause, a look before the work, doubles both kinds of requests.
	unclaimed := target("races-unclaimed", "looks for the key, acts, records, and compares requests that it finds", plain, plan.RaceAltered, broken).
		finds("double-effect-race", "mismatch-executed").may("replay-differs").
		outcome(outcomes{plan.Duplicate: held, plan.Altered: held, plan.RaceSame: broken, plan.RaceAltered: broken})
	unclaimed.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker, flow: checkThenAct, takes: time.Millisecond})
		return newService(&a.shop, a.handler())
	}
	unclaimed.Experiments = []plan.Experiment{plan.Duplicate, plan.Altered, plan.RaceSame, plan.RaceAltered}

	// The order is made once by whatever is asked, and the mail goes out each time.
	mailer := orders("mails-twice-only", "makes one order of a key, whatever is sent under it, and mails again each time", &plan.Key{Header: "Idempotency-Key"},
		plan.Contract{Profile: "ietf"}, rules{mails: true}).
		finds("outside-effect-doubled", "mismatch-replayed-as-same").
		outcome(outcomes{plan.Duplicate: broken, plan.SameMeaning: broken, plan.Altered: broken, plan.MalformedKey: broken, plan.RaceSame: broken, plan.RaceAltered: broken}).
		saysNot("took effect as well", "more than one effect").
		verdict("idempotency_support", "header_key|unknown", "outbox_pattern", "no", "race_behavior", "safe_converge")
	mailer.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key", bare: true, marker: Marker, inFlight: waits, noCompare: replays, mails: true, mailAgain: true, takes: 20 * time.Millisecond})
		h := a.handler()
		return newService(&a.shop, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Whatever is in the header is a key.
			if key := r.Header.Get("Idempotency-Key"); key != "" {
				sum := sha256.Sum256([]byte(key))
				r.Header.Set("Idempotency-Key", hex.EncodeToString(sum[:]))
			}
			h.ServeHTTP(w, r)
		}))
	}
	mailer.Experiments = []plan.Experiment{plan.Duplicate, plan.SameMeaning, plan.Altered, plan.MalformedKey, plan.RaceSame, plan.RaceAltered}

	list := []Target{
		unclaimed, mailer,
		target("instances", "two instances, one memory", plain, plan.OtherInstance, held),
		target("instances-own-memory", "each instance knows its own duplicates", ownMemory, plan.OtherInstance, broken).finds("instance-doubles"),
		apart, share, crossed,
		target("canonical", "compares what JSON means", canonical, plan.SameMeaning, held),
		target("compares-bytes", "compares bytes, and refuses", plain, plan.SameMeaning, held),
		target("keys-by-bytes", "takes other bytes for another request", byBytes, plan.SameMeaning, broken).finds("same-meaning-executed"),
		target("corrects", "does not keep refusals", plain, plan.Corrected, held),
		target("refusal-sticks", "answers with the first refusal for ever", remembers, plan.Corrected, broken).finds("refusal-sticks"),
		target("refusal-executes", "makes the order, and refuses it afterwards", begins, plan.Corrected, broken).finds("refusal-executed"),
		target("races-altered", "lets one of two requests under a key win", plain, plan.RaceAltered, held),
		target("races-altered-both", "takes other bytes for another request", byBytes, plan.RaceAltered, broken).finds("mismatch-executed"),
		target("preview", "has a dry run", checks, plan.PreviewFirst, held).says("took effect: the preview had not used the key up"),
		target("preview-answers", "answers the operation under the key of a preview with what that got", burns(false), plan.PreviewFirst, broken).
			finds("preview-uses-key").says("answered with 200 and had no effect, and a fresh request had one"),
		target("preview-key-refused", "refuses the operation under the key of a preview", burns(true), plan.PreviewFirst, broken).
			finds("preview-uses-key").says("answered with 422 and had no effect, and a fresh request had one"),
		target("preview-lies", "says that it only checks, and makes the order", lies, plan.PreviewFirst, broken).finds("preview-executed"),
		target("preview-executes", "does not look at dry_run", plain, plan.PreviewFirst, broken).finds("preview-executed"),
		target("remembers", "keeps keys", plain, plan.RetentionSearch, held),
		target("forgets-soon", "forgets keys after twelve seconds", forgets, plan.RetentionSearch, broken).finds("key-forgotten"),
		target("truncated", "drops what was cut off", plain, plan.FailedFirst, held),
		target("truncated-executes", "does not look at whether the body is whole", lenient, plan.FailedFirst, broken).finds("truncated-executed"),
		natural, changed,
	}
	return list
}

// finer adds to a plan what the experiments of Finer need.
func finer(p *plan.Plan, s *Server) {
	op := &p.Operations[0]
	edit := func(value string) *plan.Alteration {
		return &plan.Alteration{Edits: []plan.Edit{{Pointer: new(plan.Pointer("/quantity")), Value: plan.JSON(value)}}}
	}
	op.Invalid = edit("0")
	preview := op.Request
	preview.URL += "?dry_run=true"
	op.Preview = &preview
	op.Atomicity = []plan.Mechanism{{Is: "db_unique", Answer: "exists already"}, {Is: "tx_lock", Answer: "waited for {{.ref}}"}}
	p.Target.RetentionSearch = 64 * time.Second
	if op.Key == nil {
		return
	}
	refund := *op
	refund.Name, refund.OtherOperation = "orders.refund", ""
	refund.Request.URL = s.URL + "/refunds"
	refund.Experiments = []plan.Experiment{plan.MissingKey}
	op.OtherOperation = refund.Name
	op.Experiments = slices.Clone(p.Experiments)
	p.Operations = append(p.Operations, refund)
}
