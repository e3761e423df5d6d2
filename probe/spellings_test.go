package probe_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// A target that repeats a secret in all spellings, in every part of its
// responses, and tells secrets of its own under the names of such, gets none of
// them into anything that a run leaves behind or shows.
func TestNoSpellingOfASecret(t *testing.T) {
	const secret = `s3cr/et+w"ith&99`
	own := map[string]string{
		"json": "own/in-json-1", "number": "8812345678", "form": "own in form 2", "xml": "own<in>xml-3", "referer": "own-referer-4", "query": "own-query-5", "attribute": "own-attr-6", "plain": "own-plain-77",
	}
	escaped := strings.ReplaceAll(url.QueryEscape(secret), "%2F", "%2f")
	spellings := []string{
		secret, escaped, url.QueryEscape(secret), strings.ReplaceAll(secret, "/", `\/`), `s3cr\u002fet\u002bw\u0022ith\u002699`, html.EscapeString(secret), "s3cr&#47;et&#x2b;w&quot;ith&amp;99",
		base64.StdEncoding.EncodeToString([]byte("me:" + secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)), url.QueryEscape(escaped),
	}
	all := strings.Join(spellings, " , ")
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for i, spelled := range spellings {
			h.Set(fmt.Sprintf("X-Echo-%d", i), spelled)
		}
		h.Set("X-"+hex.EncodeToString([]byte(secret)), "1")
		h.Set("Content-Type", `text/plain; note="`+strings.ReplaceAll(secret, `"`, `\"`)+`"`)
		h.Set("Link", "<https://me:"+own["referer"]+"@h/?access_token="+own["query"]+">")
		h.Set("Location", "/things/"+escaped)
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(map[string]any{"n": n, "seen": all, "password": own["json"], "pin_token": json.Number(own["number"])})
			return
		}
		n++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%s\nclient_secret=%s&a=b\n<x:password>%s</x:password><y api-key=\"%s\"/>\nthe token: %s\n", all, url.QueryEscape(own["form"]), html.EscapeString(own["xml"]), own["attribute"], own["plain"])
	}))
	defer s.Close()
	dir := t.TempDir()
	trail := filepath.Join(dir, "trail.log")
	if err := os.WriteFile(trail, []byte("key "+all+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := simple(s.URL, plan.Duplicate)
	p.Operations[0].Request.Headers = plan.Header{{Name: "Authorization", Value: `Bearer {{env "TOKEN"}}`}, {Name: "Referer", Value: "http://me:" + own["referer"] + "@h/"}}
	p.Operations[0].Resource = &plan.Resource{Header: "Location"}
	p.Operations[0].Audit = []plan.Audit{{Name: "trail", Log: trail, Find: plan.Pairs{{Name: "key", Value: "key"}}}}

	outputs := map[string]string{}
	var events strings.Builder
	res := mustRun(t, p, probe.Options{
		Send: true, Source: plan.Source{Env: func(string) (string, bool) { return secret, true }},
		Progress: func(e probe.Event) { fmt.Fprintf(&events, "%+v\n", e) },
	})
	outputs["events"] = events.String()
	for name, write := range map[string]func(io.Writer) error{
		"json":     func(w io.Writer) error { return report.JSON(w, res.Run) },
		"junit":    func(w io.Writer) error { return report.JUnit(w, res.Run) },
		"sarif":    func(w io.Writer) error { return report.SARIF(w, res.Run) },
		"markdown": func(w io.Writer) error { return report.Markdown(w, res.Run) },
		"terminal": func(w io.Writer) error { return report.Terminal(w, res.Run, report.TerminalOptions{}) },
		"har":      res.WriteHAR,
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		outputs[name] = b.String()
	}
	for i, e := range res.HAR().Log.Entries {
		outputs[fmt.Sprint("sent ", i)], outputs[fmt.Sprint("received ", i)] = string(e.Semel.Sent), string(e.Semel.Received)
		outputs[fmt.Sprint("text ", i)], outputs[fmt.Sprint("type ", i)] = e.Response.Content.Text, e.Response.Content.MIME
	}
	folder := filepath.Join(dir, "run")
	if err := report.Write(folder, res.Run, report.Files{Plan: []byte("x"), HAR: res.WriteHAR}); err != nil {
		t.Fatal(err)
	}
	files := 0
	if err := filepath.WalkDir(folder, func(path string, f fs.DirEntry, err error) error {
		if err != nil || f.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		outputs[path] = string(b)
		files++
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if files < 6 {
		t.Errorf("%d files", files)
	}
	for name, text := range outputs {
		for _, plain := range append(spellings, "s3cr", "ith&") {
			for _, in := range []string{text, html.UnescapeString(text)} {
				if strings.Contains(in, plain) {
					t.Errorf("%s has the secret as %s", name, plain)
				}
			}
		}
		for kind, plain := range own {
			if strings.Contains(text, plain) || strings.Contains(text, url.QueryEscape(plain)) || strings.Contains(text, html.EscapeString(plain)) {
				t.Errorf("%s has the target's own secret of %s", name, kind)
			}
		}
	}
	if !strings.Contains(outputs["har"], "redacted-1") || !strings.Contains(outputs["json"], "redacted-1") {
		t.Error("nothing was redacted: the test sees nothing")
	}
}
