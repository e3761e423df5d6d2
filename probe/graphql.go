package probe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// graphQL marks responses whose Status is what data and errors say, with the words
// for it in Reason.
const graphQL = "GraphQL"

// graphQLCodes say which status an error's code stands for. The first that is
// part of the code counts.
var graphQLCodes = []struct {
	part   string
	status int
}{
	{"UNAUTHENTICATED", 401},
	{"FORBIDDEN", 403},
	{"NOT_FOUND", 404},
	{"RATE_LIMIT", 429},
	{"TOO_MANY", 429},
	{"IN_PROGRESS", 409},
	{"CONFLICT", 409},
	{"ALREADY", 409},
	{"UNAVAILABLE", 503},
	{"TIMEOUT", 504},
	{"INTERNAL", 500},
}

// meant returns an exchange as it is to be judged: a response of GraphQL says
// with data and errors what others say with a status.
func (o *operation) meant(x wire.Exchange) wire.Exchange {
	if !graphQLBody(o.op.Request.Body) || x.Response == nil || x.Response.Truncated || x.Response.Status/100 != 2 {
		return x
	}
	status, said := graphQLStatus(x.Response.Body)
	if status == 200 {
		status = x.Response.Status
	}
	r := *x.Response
	r.Proto, r.Status, r.Reason = graphQL, status, fmt.Sprintf("%d %s", x.Response.Status, said)
	x.Response = &r
	return x
}

func graphQLBody(b *plan.Body) bool { return b != nil && b.GraphQL != nil }

// graphQLStatus reads data and errors: 200 for success, else what the first
// error's code stands for, 400 without one.
func graphQLStatus(body []byte) (status int, said string) {
	v, err := decodeJSON(body)
	doc, ok := v.(map[string]any)
	_, hasData := doc["data"]
	errs, _ := doc["errors"].([]any)
	if err != nil || !ok || !hasData && len(errs) == 0 {
		return 400, "without data and errors, so it is not a GraphQL response"
	}
	data, _ := doc["data"].(map[string]any)
	some := slices.ContainsFunc(slices.Collect(maps.Values(data)), func(v any) bool { return v != nil })
	switch {
	case some && len(errs) > 0:
		return 200, "with data and errors"
	case some:
		return 200, "with data"
	case len(errs) == 0:
		return 400, "without data"
	}
	code, _ := lookup(errs[0], "/extensions/code")
	name, _ := code.(string)
	said = "with errors"
	if graphQLCode(name) {
		said += " (" + name + ")"
	}
	for _, at := range []plan.Pointer{"/extensions/http/status", "/extensions/status"} {
		v, ok := lookup(errs[0], at)
		if !ok {
			continue
		}
		if n, err := number(scalar(v)); err == nil && n.IsInt() && n.Num().IsInt64() && n.Num().Int64() >= 400 && n.Num().Int64() <= 599 {
			return int(n.Num().Int64()), said
		}
	}
	for _, c := range graphQLCodes {
		if strings.Contains(strings.ToUpper(name), c.part) {
			return c.status, said
		}
	}
	return 400, said
}

// graphQLCode reports whether a code of the target's can stand in a report.
func graphQLCode(s string) bool {
	return s != "" && len(s) <= 60 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == ""
}

// graphQLResource is the id in the data of a response: that of its first field
// by name which has one.
func graphQLResource(body []byte) string {
	v, err := decodeJSON(body)
	if err != nil {
		return ""
	}
	found, _ := lookup(v, "/data")
	data, _ := found.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(data)) {
		if id, ok := lookup(data[name], "/id"); ok && id != nil {
			return scalar(id)
		}
	}
	return ""
}

// status writes the status of a response, as it came.
func status(r *wire.Response) string {
	if r.Proto == graphQL {
		return r.Reason
	}
	return strconv.Itoa(r.Status)
}
