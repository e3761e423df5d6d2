// Package plan is what the probe is told: which operations to try, who may be
// asked, how an effect shows, and what must never be touched.
//
// A plan is a YAML file. [Parse] reads it strictly: what it does not know is an
// error, and all problems come back together, each with its line. [Schema] is
// the same rules as JSON Schema, for editors.
//
// # Templates
//
// A string marked "template" in the schema may hold {{...}}:
//
//	{{uuid}} {{uuid7}} {{hex 16}} {{digits 6}} {{seq}} {{now}} {{now "unix"}}
//	{{env "NAME"}} {{file "token.txt"}}
//	{{.order_ref}} {{.key}} {{.run}} {{.resource_id}} {{.principal.tenant}}
//	{{.login | base64}} {{.order_ref | url}} {{.note | json}}
//	{{fill "what the author still has to say"}}
//	{{"{{"}}
//
// Those of the first line are fresh values. They are drawn once for each logical
// request, by [Renderer.Draw], and every rendering of that request repeats them:
// whoever resends it resends the same bytes, whatever the clock says by then.
// They may stand in variables, in the key and in the request; whoever looks for
// the effect names a variable. Layouts of now are rfc3339 (the default), date,
// http, unix and unix_ms, in UTC.
//
// Values of env and file are secrets. [Renderer.Secrets] lists them in every
// form in which they can reach the wire, so that evidence can be written
// without them. There is no other way to write a credential in a plan: a literal
// value of Authorization, Cookie and the like is refused.
//
// The text of a template goes where it is written as it is, with two
// exceptions. In the json body a value becomes the content of a JSON string,
// escaped as one. In a regular expression it is quoted, to match itself.
package plan
