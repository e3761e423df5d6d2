package importer

import (
	"strings"
	"testing"
)

func TestHAREntries(t *testing.T) {
	file := "\xef\xbb\xbf" + `{"log":{"version":"1.2","pages":7,"entries":[
	{"request":{"method":"POST","url":"https://a.example/x?y=%2f#z","httpVersion":"h2","bodySize":3.5,"headers":[
		{"name":":authority","value":"a.example"},{"name":"Content-Length","value":"9"},{"name":"Host","value":"b.example"},{"name":"X-b","value":"1"},{"name":"cookie","value":"a=b"}],
		"postData":{"mimeType":"application/json","text":"{\"n\":1}"}}},
	{"request":{"method":"POST","url":"http://a.example/","headers":[],"postData":{"mimeType":"application/x-www-form-urlencoded; charset=utf-8","params":[{"name":"a","value":"1 2"},{"name":"b","value":"%26"}]}}},
	{"request":{"method":"POST","url":"http://a.example/","headers":[],"postData":{"mimeType":"text/plain","text":"//4=","_encoding":"base64"}}},
	{"request":{"method":"GET","url":"http://a.example/"}},
	{"request":{"method":"GET","url":"ws://a.example/"}},
	{"request":{"method":"POST","url":"http://a.example/","postData":{"mimeType":"multipart/form-data; boundary=x","params":[{"name":"secret","fileName":"f"}]}}},
	{"request":{"method":"POST","url":"http://a.example/","postData":{"text":"secret!","encoding":"base64"}}},
	{"response":{}}, 5, {"request":{"method":3}}
	]}}`
	got, err := harEntries([]byte(file), MaxInput)
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{
		"POST https://a.example/x?y=%2f#z\nHost: b.example\nX-b: 1\ncookie: a=b\nContent-Type: application/json\n\n{\"n\":1}",
		"POST http://a.example/\nContent-Type: application/x-www-form-urlencoded; charset=utf-8\n\na=1+2&b=%26",
		"POST http://a.example/\nContent-Type: text/plain\n\n\xff\xfe",
		"GET http://a.example/\n\n",
		"", "", "", "", "", "",
	}
	if len(got) != len(wants) {
		t.Fatalf("%d entries, want %d", len(got), len(wants))
	}
	for i, want := range wants {
		if want == "" {
			if got[i].Err == nil || strings.Contains(got[i].Err.Error(), "secret") {
				t.Errorf("entry %d: error is %v", i, got[i].Err)
			}
			continue
		}
		q := got[i].Request
		if text := render(q.Method, q.URL, q.Header, q.Body); got[i].Err != nil || text != want {
			t.Errorf("entry %d: %v\ngot  %q\nwant %q", i, got[i].Err, text, want)
		}
	}

	for name, text := range map[string]string{"no JSON": "secret", "no log": `{"a":"secret"}`, "entries": `{"log":{"entries":"secret"}}`, "empty": ""} {
		if _, err := harEntries([]byte(text), MaxInput); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if _, err := harEntries([]byte(file), 10); err == nil || !strings.Contains(err.Error(), "larger than 10") {
		t.Errorf("error is %v", err)
	}
}

func FuzzHAREntries(f *testing.F) {
	f.Add([]byte(`{"log":{"entries":[{"request":{"method":"POST","url":"http://a.example/","headers":[{"name":"A","value":"b"}],"postData":{"mimeType":"a/b","text":"x"}}}]}}`))
	f.Add([]byte(`{"log":{"entries":[{"request":{"method":"POST","url":"http://a/","postData":{"mimeType":"application/x-www-form-urlencoded","params":[{"name":"%","value":"&"}]}}}]}}`))
	f.Add([]byte(`{"log":{"entries":[null,{"request":null}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := harEntries(b, 1<<20)
		if err != nil {
			return
		}
		for _, g := range got {
			if valid := g.Request.validate() == nil; g.Err == nil && !valid {
				t.Error("an invalid request without an error")
			}
		}
	})
}
