package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

var (
	outageTime  = flag.Duration("outage", 0, "how long TestOutageIsSettledInBulk has an outage of 200 requests a second (default 2,000 requests at once)")
	outageStore = flag.String("outage-store", "sqlite", "the store of that test: sqlite or postgres")
)

// operator uses the page of a gateway.
type operator struct {
	t      *testing.T
	admin  string
	client *http.Client
}

const operatorToken = "0123456789abcdef0123"

func newOperator(t *testing.T, g *process) *operator {
	t.Helper()
	jar, err := cookiejar.New(nil)
	noError(t, err)
	o := &operator{t, g.admin(), &http.Client{Jar: jar}}
	want(t, "status of the login", o.post("/console/login", url.Values{"token": {operatorToken}}).status, 200)
	return o
}

func (o *operator) post(path string, form url.Values) answer {
	o.t.Helper()
	res, err := o.client.PostForm(o.admin+path, form)
	noError(o.t, err)
	return o.read(res)
}

func (o *operator) get(path string) answer {
	o.t.Helper()
	res, err := o.client.Get(o.admin + path)
	noError(o.t, err)
	return o.read(res)
}

func (o *operator) read(res *http.Response) answer {
	o.t.Helper()
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	noError(o.t, err)
	res.Header.Set("Location", res.Request.URL.Path)
	return answer{res.StatusCode, res.Header, string(body)}
}

var (
	carryForm = regexp.MustCompile(`(?s)<form method="post" action="/console/runs">(.*?)</form>`)
	carryIn   = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)
	carryText = regexp.MustCompile(`(?s)<textarea name="([^"]+)" hidden>\n(.*?)</textarea>`)
	pageTotal = regexp.MustCompile(`<p class="big"><b>([0-9,]+)</b>`)
	settledDD = regexp.MustCompile(`id="settled">([0-9,]+)<`)
)

// preview returns what would be settled, and the form that does it; nil if there is
// nothing.
func (o *operator) preview(form url.Values) (total string, carry url.Values) {
	o.t.Helper()
	a := o.post("/console/settle", form)
	want(o.t, "status of the preview", a.status, 200)
	total = pageTotal.FindStringSubmatch(a.body)[1]
	m := carryForm.FindStringSubmatch(a.body)
	if m == nil {
		return total, nil
	}
	carry = url.Values{}
	for _, in := range append(carryIn.FindAllStringSubmatch(m[1], -1), carryText.FindAllStringSubmatch(m[1], -1)...) {
		carry.Add(in[1], html.UnescapeString(in[2]))
	}
	return total, carry
}

// ended waits for the end of a run, and returns how many it has settled.
func (o *operator) ended(run string) string {
	o.t.Helper()
	for {
		a := o.get(run)
		if strings.Contains(a.body, "data-ended") {
			if !strings.Contains(a.body, "Done.") {
				o.t.Fatalf("the run did not come to its end:\n%s", a.body)
			}
			return settledDD.FindStringSubmatch(a.body)[1]
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-o.t.Context().Done():
			o.t.Fatal("the run does not end")
		}
	}
}

// TestOutageIsSettledInBulk: the service has an outage, in which it executes some
// requests and others not, and answers 502 to all. What it has executed is settled
// from the page, by a gateway that is killed in the middle of it and started again;
// the rest by the command. Then all clients try again, and each request has had its
// effect once.
func TestOutageIsSettledInBulk(t *testing.T) {
	var out atomic.Bool
	var effects sync.Map // by key: *atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if r.URL.Path == "/taken" || !out.Load() {
			n, _ := effects.LoadOrStore(key, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
		if out.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer upstream.Close()
	db := newStore(t)
	if *outageStore == "postgres" {
		db = testenv.Postgres(t)
	}
	args := []string{"--upstream", upstream.URL, "--store", db, "--admin", ":0", "--deadline", "1m"}
	env := []string{"SEMEL_ADMIN_TOKEN=" + operatorToken}
	g := startGatewayIn(t, env, nil, args...)

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	send := func(n int) int {
		path := []string{"/taken", "/dropped"}[n%2]
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+path, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", fmt.Sprint("order-", n))
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode
	}
	// all sends so many requests, paced if every is not 0, and counts the responses.
	all := func(n int, every time.Duration) map[int]int {
		var mu sync.Mutex
		statuses, next := map[int]int{}, make(chan int)
		var workers sync.WaitGroup
		for range 32 {
			workers.Go(func() {
				for i := range next {
					status := send(i)
					mu.Lock()
					statuses[status]++
					mu.Unlock()
				}
			})
		}
		begin := time.Now()
		for i := range n {
			if wait := time.Until(begin.Add(time.Duration(i) * every)); every > 0 && wait > 0 {
				time.Sleep(wait) // that is the rate, and no wait for anything
			}
			next <- i
		}
		close(next)
		workers.Wait()
		return statuses
	}
	requests, every := 2000, time.Duration(0)
	if *outageTime > 0 {
		requests, every = int(*outageTime/(5*time.Millisecond)), 5*time.Millisecond
	}
	out.Store(true)
	begin := time.Now()
	want(t, "answers of 502 in the outage", all(requests, every)[502], requests)
	t.Logf("%d requests in %v of outage", requests, time.Since(begin).Round(time.Millisecond))
	out.Store(false)

	o := newOperator(t, g)
	form := url.Values{
		"all": {"1"}, "operation": {"POST /taken"}, "way": {"result"}, "status": {"201"}, "because": {"it is in the ledger"}, "who": {"alice"},
	}
	begin = time.Now()
	_, carry := o.preview(form)
	t.Logf("the preview took %v", time.Since(begin).Round(time.Millisecond))
	want(t, "status of the run", o.post("/console/runs", carry).status, 200)
	for !strings.Contains(ok(t, "audit", "search", "--store", db, "--kind", "resolved", "--limit", "1", "--json"), "record_id") {
		if t.Context().Err() != nil {
			t.Fatal("the run settles nothing")
		}
	}
	g.kill()
	g = startGatewayIn(t, env, nil, args...)
	o = newOperator(t, g)
	// A preview that has no time for all is carried out, and followed by another.
	begin = time.Now()
	before, rounds := "", 0
	for total, carry := o.preview(form); carry != nil; total, carry = o.preview(form) {
		if rounds++; rounds == 1 {
			before = total
		}
		a := o.post("/console/runs", carry)
		t.Logf("the page settled %s of %s", o.ended(a.header.Get("Location")), total)
	}
	t.Logf("of %d, %s were left when the gateway was killed in the middle and started again; the page settled them in %v, with %d previews",
		requests/2, before, time.Since(begin).Round(time.Millisecond), rounds)
	left, _ := o.preview(form)
	want(t, "what the page leaves", left, "0")

	var dry bulkJSON
	noError(t, json.Unmarshal([]byte(ok(t, "keys", "resolve", "--store", db, "--where", "answered=502", "--where", "operation=POST /dropped", "--json",
		"--as", "no-effect", "--because", "it is not in the ledger", "--by", "bob")), &dry))
	want(t, "what the command selects", dry.Selected, requests/2)
	command := dry.Command[1:]
	for i, w := range command {
		if w == "$SEMEL_STORE" {
			command[i] = db
		}
	}
	begin = time.Now()
	var done bulkJSON
	noError(t, json.Unmarshal([]byte(ok(t, command...)), &done))
	want(t, "settled by the command", done.Settled, requests/2)
	t.Logf("the command settled %d in %v", done.Settled, time.Since(begin).Round(time.Millisecond))

	begin = time.Now()
	want(t, "answers of 201 to the clients that try again", all(requests, 0)[201], requests)
	t.Logf("all clients tried again in %v", time.Since(begin).Round(time.Millisecond))
	for n := range requests {
		times := int64(0)
		if v, ok := effects.Load(fmt.Sprint("order-", n)); ok {
			times = v.(*atomic.Int64).Load()
		}
		if times != 1 {
			t.Errorf("request %d took effect %d times", n, times)
		}
	}
	var trail struct {
		Entries []struct {
			RecordID string `json:"record_id"`
			By       string `json:"request_id"`
		}
	}
	noError(t, json.Unmarshal([]byte(ok(t, "audit", "search", "--store", db, "--kind", "resolved", "--all", "--json")), &trail))
	by, records := map[string]int{}, map[string]bool{}
	for _, e := range trail.Entries {
		by[e.By]++
		records[e.RecordID] = true
	}
	want(t, "resolutions by alice, from the page", by["operator:alice"], requests/2)
	want(t, "resolutions by bob, with the command", by["operator:bob"], requests/2)
	want(t, "records that were settled", len(records), requests)
}

// TestConsoleOfAGateway: the page of a gateway shows what its metrics, its store and
// its configuration have, and nothing of it without the token.
func TestConsoleOfAGateway(t *testing.T) {
	u := newUpstream(t)
	g := startGatewayIn(t, []string{"SEMEL_ADMIN_TOKEN=" + operatorToken}, nil,
		"--upstream", u.url, "--store", newStore(t), "--admin", ":0")
	want(t, "status", post(t, g.url, "a", "{}").status, 201)
	want(t, "status of the retry", post(t, g.url, "a", "{}").status, 201)
	want(t, "status without the token", ask(t, g.admin()+"/", "").status, 401)
	o := newOperator(t, g)
	rate := regexp.MustCompile(`<td class="number" data-label="a second, over the last minute">[0-9.]+</td><td class="number" data-label="since the start">`)
	now := rate.ReplaceAllString(o.get("/console/").body, "<td>")
	for _, part := range []string{
		`<td>executed</td><td>1</td>`, `<td>replayed</td><td>1</td>`, `<td>mismatch</td><td>0</td>`, `4,096`, `answers`, strings.TrimPrefix(u.url, "http://"), "All of it is at zero",
	} {
		if !strings.Contains(now, part) {
			t.Errorf("the overview lacks %s:\n%s", part, now)
		}
	}
	settings := o.get("/console/configuration").body
	for _, part := range []string{"sqlite:", "--upstream or $SEMEL_UPSTREAM", "24h0m0s"} {
		if !strings.Contains(settings, part) {
			t.Errorf("the configuration lacks %s:\n%s", part, settings)
		}
	}
	if strings.Contains(settings+now, operatorToken) {
		t.Error("the page shows the token")
	}
}
