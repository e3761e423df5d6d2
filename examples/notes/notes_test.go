package main

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/semelhq/semel/semelhttp"
)

// Two people, one note, and answers that get lost.
func Example() {
	dir, err := os.MkdirTemp("", "notes")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	n, err := open(context.Background(), filepath.Join(dir, "notes.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = n.close() }()

	send := func(method, condition, key, body string) {
		r := httptest.NewRequest(method, "/notes/1", strings.NewReader(body))
		r.SetBasicAuth("ann", "")
		if name, value, ok := strings.Cut(condition, ": "); ok {
			r.Header.Set(name, value)
		}
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		n.handler.ServeHTTP(w, r)
		told := w.Header().Get("ETag") + " " + strings.TrimSpace(w.Body.String())
		if p, err := semelhttp.ParseProblem(w.Body, w.Header().Get("Content-Type")); err == nil {
			told = p.Title
		}
		fmt.Println(strings.TrimSpace(fmt.Sprint(w.Code, " ", told)))
	}
	send("PUT", "If-None-Match: *", "", `{"title": "Milk", "body": "one pint"}`)
	send("PATCH", `If-Match: "1"`, "a", `{"body": "two pints"}`)
	send("PATCH", `If-Match: "1"`, "a", `{"body": "two pints"}`)   // the answer was lost
	send("PATCH", `If-Match: "1"`, "b", `{"title": "Cow milk"}`)   // by somebody who saw version 1
	send("PATCH", `If-Match: "2"`, "b", `{"title": "Cow milk"}`)   // and has looked again
	send("PATCH", `If-Match: "3"`, "b", `{"title": "Cow milk"}`)   // not what was asked before
	send("PATCH", "", "c", `{"title": "Oats"}`)                    // for which version?
	send("GET", `If-None-Match: "3"`, "", "")                      // nothing new
	send("DELETE", `If-Match: "3"`, "", "")                        //
	send("PUT", "If-None-Match: *", "", `{"title": "Milk again"}`) // whose version is new
	send("PATCH", `If-Match: "1"`, "", `{"body": "one pint"}`)     // by who saw the first note
	// Output:
	// 201 "1" {"title":"Milk","body":"one pint"}
	// 200 "2" {"title":"Milk","body":"two pints"}
	// 200 "2" {"title":"Milk","body":"two pints"}
	// 412 The precondition does not hold
	// 200 "3" {"title":"Cow milk","body":"two pints"}
	// 422 Idempotency-Key is already used
	// 428 The request must be conditional
	// 304 "3"
	// 204
	// 201 "5" {"title":"Milk again","body":""}
	// 412 The precondition does not hold
}
