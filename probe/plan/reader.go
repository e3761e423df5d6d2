package plan

import (
	"encoding/json"
	"time"
)

// Reader measures a piece of the target's state as a number: a count of things,
// or a value.
type Reader struct {
	_ struct{} `one:"http,sql,log,command,webhook,smtp"`

	// Name is unique in the operation.
	Name string `yaml:"name" rule:"required,names=operation,max=100"`
	// HTTP reads a resource.
	HTTP *HTTPReader `yaml:"http"`
	// SQL asks the target's database.
	SQL *SQLReader `yaml:"sql"`
	// Log counts lines of a file.
	Log *LogReader `yaml:"log"`
	// Command runs a program.
	Command *CommandReader `yaml:"command"`
	// Webhook counts requests that the target sends to the probe.
	Webhook *Sink `yaml:"webhook"`
	// SMTP counts mails that the target sends to the probe.
	SMTP *Sink `yaml:"smtp"`
	// Effect is the amount by which the operation, done once, changes the number.
	// Default: 1.
	Effect json.Number `yaml:"effect"`
	// Outside marks an effect outside of the target's own state: a mail, a webhook, a payment. Default: true for webhook and smtp.
	Outside *bool `yaml:"outside"`
}

// HTTPReader sends a GET, or a POST, and takes a number from the response.
type HTTPReader struct {
	_ struct{} `one:"count,value,lines,number"`

	// URL is a template.
	URL string `yaml:"url" rule:"required,max=16384"`
	// Headers are templates.
	Headers Header `yaml:"headers" rule:"names=header,items=50"`
	// Post is a body to POST, for targets that search in this way. Default: a GET. It must not change anything.
	Post *Body `yaml:"post"`
	// As is who reads. Default: actor_a.
	As PrincipalName `yaml:"as" rule:"enum=actor_a|actor_b|tenant_b"`
	// Format of the response, for count and value. In xml, a pointer is the path
	// of local names from the root element, such as /orders/order; it leads to all
	// elements of this path, and its last part may be an attribute, such as @id.
	// Default: json.
	Format string `yaml:"format" rule:"enum=json|xml"`
	// Count is a JSON pointer to an array, whose elements are counted; in xml, a
	// path whose elements are. A 404 counts as none.
	Count *Pointer `yaml:"count" rule:"names=pointer"`
	// Where keeps, of what is counted, the elements with these values: JSON pointers within an element, and templates. A number is compared by its text.
	Where Pairs `yaml:"where" rule:"names=pointer,items=20"`
	// ID is a JSON pointer within a counted element to what identifies it, for the report.
	ID *Pointer `yaml:"id" rule:"names=pointer"`
	// Value is a JSON pointer to a number.
	Value *Pointer `yaml:"value" rule:"names=pointer"`
	// Lines is a regular expression (RE2) and a template; the lines of the
	// response that match are counted. A 404 counts as none.
	Lines string `yaml:"lines" rule:"max=4096"`
	// Number is a regular expression (RE2) and a template whose first group is a
	// number in the response.
	Number string `yaml:"number" rule:"max=4096"`
	// Pages says how to get the other pages of a list, for count and lines.
	// Default: the first response is the whole list.
	Pages *Pages `yaml:"pages"`
}

// Pages says how to find the next page of a list. Each page counts against the
// budget of reads. A page on another host is not read: the reader then fails, as
// it does when there are more pages than max.
type Pages struct {
	_ struct{} `one:"header,next,number"`

	// Header names the next page as a link with rel="next" (RFC 8288): Link, as a rule.
	Header string `yaml:"header" rule:"names=header"`
	// Next is a JSON pointer, or in xml a path, to the URL of the next page, or to a cursor. If it is not there, or is null, false or empty, the page is the last.
	Next *Pointer `yaml:"next" rule:"names=pointer"`
	// Parameter is the query parameter that next goes to. Default: next is a URL.
	Parameter string `yaml:"parameter" rule:"max=200"`
	// Member is a JSON pointer into the body of post that next goes to.
	Member Pointer `yaml:"member" rule:"names=member"`
	// Number is the query parameter that counts pages; it is 2 for the second one. A page with nothing to count, whatever where says, is the last.
	Number string `yaml:"number" rule:"max=200"`
	// Max is how many pages there can be. Default: 20.
	Max int `yaml:"max" rule:"min=1,max=1000"`
}

// SQLReader runs a query and takes the first column of its first row. The
// transaction is read-only if the database supports that.
type SQLReader struct {
	Driver string `yaml:"driver" rule:"required,enum=postgres|sqlite|mysql"`
	// DSN is a template, of env or file.
	DSN string `yaml:"dsn" rule:"required,max=4096"`
	// Query is sent as it is. What differs goes into args.
	Query string `yaml:"query" rule:"required,max=65536"`
	// Args are templates.
	Args []string `yaml:"args" rule:"items=50,empty"`
}

// LogReader counts the lines of a file that match.
type LogReader struct {
	// File, relative to the plan's folder.
	File string `yaml:"file" rule:"required"`
	// Pattern is a regular expression (RE2) and a template.
	Pattern string `yaml:"pattern" rule:"required,max=4096"`
}

// CommandReader runs a program without a shell. It must not change anything.
type CommandReader struct {
	// Argv is the program and its arguments, templates.
	Argv []string `yaml:"argv" rule:"required,items=100,empty"`
	// Pattern is a regular expression (RE2) and a template; the lines of the output that match are counted. Default: the output is one number.
	Pattern string `yaml:"pattern" rule:"max=4096"`
	// Timeout for the program. Default: 30s.
	Timeout time.Duration `yaml:"timeout"`
}

// Sink is a server that the probe runs and the target sends to.
type Sink struct {
	// Listen is where, as host:port.
	Listen string `yaml:"listen" rule:"required,names=address"`
	// Match is a regular expression (RE2) and a template; only what matches, headers included, is counted. Default: everything.
	Match string `yaml:"match" rule:"max=4096"`
}

// Mechanism is a sign of what decides between duplicates. It counts if it is
// found after a duplicate or a race that had one effect, or if there is more
// of it afterwards than before.
type Mechanism struct {
	_ struct{} `one:"answer,log,sql"`

	// Is what the sign stands for: a unique constraint, a lock of a transaction, or a version that is compared.
	Is string `yaml:"is" rule:"required,enum=db_unique|tx_lock|optimistic"`
	// Answer is a regular expression (RE2) for the response to a duplicate: the
	// name of a constraint, say.
	Answer string `yaml:"answer" rule:"max=4096"`
	// Log counts lines of a file: those of a database that tell of a violated constraint, say.
	Log *LogReader `yaml:"log"`
	// SQL asks the target's database for a number; it counts if it is more than 0 at the end, such as that of unique indexes over the key.
	SQL *SQLReader `yaml:"sql"`
}

// Resource is where a response names the resource: in the header if there is a
// header, else in the body.
type Resource struct {
	_ struct{} `any:"header,pointer,pattern"`

	// Header such as Location.
	Header string `yaml:"header" rule:"names=header"`
	// Pointer into the JSON body.
	Pointer *Pointer `yaml:"pointer" rule:"names=pointer"`
	// Pattern is a regular expression (RE2) whose first group is the id.
	Pattern string `yaml:"pattern" rule:"max=4096"`
}

// Poll is how to ask what became of a request that was accepted with 202: with
// a GET, with the headers of the request, against the budget of reads. On 202,
// 404, 429 or 503 it asks again; 302 or 303 means that it is done.
type Poll struct {
	// URL is a template; it may refer to what take takes, and to the key. Default:
	// the URL that the response names in Location, Operation-Location,
	// Azure-AsyncOperation, Content-Location, or a member such as status_url.
	URL string `yaml:"url" rule:"max=16384"`
	// Take says what to take from the 202, for url.
	Take []Taking `yaml:"take" rule:"items=20"`
	// State is a JSON pointer to the state: a text, a number or a truth value. Default: /status, /state or
	// /phase, also below /data; a JSON response without one means that it is done.
	State *Pointer `yaml:"state" rule:"names=pointer"`
	// Pending are words for not finished. Case is ignored; space, - and _ are the same. Default: accepted,
	// pending, queued, scheduled, started, processing, in_progress, running, submitted, working.
	Pending []string `yaml:"pending" rule:"items=50,max=100"`
	// Done are words for finished, with its effect. Default: done, completed, complete, succeeded, success,
	// successful, finished, executed, confirmed, paid, ok.
	Done []string `yaml:"done" rule:"items=50,max=100"`
	// Failed are words for finished, without success. Default: failed, failure, error, errored, canceled,
	// cancelled, rejected, aborted, expired, timed_out.
	Failed []string `yaml:"failed" rule:"items=50,max=100"`
	// Interval is the pause before it is asked again, if Retry-After does not ask for a longer one. Default: timing.poll at first, then up to ten times that.
	Interval time.Duration `yaml:"interval"`
	// Limit is how long it is asked. Default: timing.settle_limit.
	Limit time.Duration `yaml:"limit"`
}

// Audit is a place that is searched for traces after an experiment.
type Audit struct {
	_ struct{} `one:"log,http,command"`

	// Name is unique in the operation.
	Name string `yaml:"name" rule:"required,names=operation,max=100"`
	// Log is a file, relative to the plan's folder.
	Log string `yaml:"log"`
	// HTTP is what to GET.
	HTTP *AuditHTTP `yaml:"http"`
	// Command is a program and its arguments, templates, run without a shell.
	Command []string `yaml:"command" rule:"items=100,empty"`
	// Find are regular expressions (RE2) and templates by what they find: key, request_id, event_id, trace_id, actor, outcome, or a name of your own. A line belongs to the request if the key, request_id, event_id or trace_id matches.
	Find Pairs `yaml:"find" rule:"required,names=variable,items=20"`
}

// AuditHTTP is a GET whose response is searched line by line; elements of a
// JSON array count as lines.
type AuditHTTP struct {
	// URL is a template.
	URL string `yaml:"url" rule:"required,max=16384"`
	// Headers are templates.
	Headers Header `yaml:"headers" rule:"names=header,items=50"`
	// As is who reads. Default: actor_a.
	As PrincipalName `yaml:"as" rule:"enum=actor_a|actor_b|tenant_b"`
}
