package plan_test

import (
	"fmt"
	"math/rand"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/plan"
)

// A plan is read, the values of one logical request are drawn, and the request
// is rendered as often as it is sent.
func Example() {
	p, err := plan.ParseFile("testdata/orders.yaml")
	if err != nil {
		fmt.Println(err) // every problem, with its line
		return
	}
	// What is not said is this process's. Here, all is fixed.
	r, err := plan.NewRenderer(p, plan.Source{
		Now:    func() time.Time { return time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC) },
		Random: rand.New(rand.NewSource(1)),
		Run:    "r1",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	values, err := r.Draw("orders.create")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, change := range []plan.Change{{}, {}, {Altered: true}, {NoKey: true}} {
		req, err := r.Request(values, change)
		if err != nil {
			fmt.Println(err)
			return
		}
		bytes, _ := req.Bytes()
		fmt.Println(strings.ReplaceAll(string(bytes), "\r\n", "\n"))
		fmt.Println("----")
	}
	reading, err := r.Reading(values, &values.Operation().Readers[0], "")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reading.Request.Method, reading.Request.URL, "counting", reading.Where)
	// Output:
	// POST /orders HTTP/1.1
	// Host: 127.0.0.1:9000
	// X-Request-Id: 01a1fb67-1800-7a62-9d72-9566c74d1003
	// Content-Type: application/json
	// Idempotency-Key: "7c4d7bbb-0407-41e2-8649-81855ad8681d"
	// Content-Length: 45
	//
	// {"item":"probe r1 52fdfc072182","quantity":1}
	// ----
	// POST /orders HTTP/1.1
	// Host: 127.0.0.1:9000
	// X-Request-Id: 01a1fb67-1800-7a62-9d72-9566c74d1003
	// Content-Type: application/json
	// Idempotency-Key: "7c4d7bbb-0407-41e2-8649-81855ad8681d"
	// Content-Length: 45
	//
	// {"item":"probe r1 52fdfc072182","quantity":1}
	// ----
	// POST /orders HTTP/1.1
	// Host: 127.0.0.1:9000
	// X-Request-Id: 01a1fb67-1800-7a62-9d72-9566c74d1003
	// Content-Type: application/json
	// Idempotency-Key: "7c4d7bbb-0407-41e2-8649-81855ad8681d"
	// Content-Length: 45
	//
	// {"item":"probe r1 52fdfc072182","quantity":2}
	// ----
	// POST /orders HTTP/1.1
	// Host: 127.0.0.1:9000
	// X-Request-Id: 01a1fb67-1800-7a62-9d72-9566c74d1003
	// Content-Type: application/json
	// Content-Length: 45
	//
	// {"item":"probe r1 52fdfc072182","quantity":1}
	// ----
	// GET http://127.0.0.1:9000/orders counting [{/item probe r1 52fdfc072182}]
}
