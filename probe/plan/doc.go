// Package plan describes a run of the probe: which operations to try, which
// hosts to contact, how an effect shows, and what must never be touched.
//
// A plan is a YAML file. [Parse] reads it strictly: an unknown key is an error,
// and all problems are returned together, each with its line. [Schema] returns
// the same rules as a JSON Schema, for editors.
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
// sending it again sends the same bytes, whatever the time is by then. They may
// be used in variables, in the key and in the request; a reader refers to them
// by a variable. Layouts of now are rfc3339 (the default), date, http, unix and
// unix_ms, in UTC.
//
// Values of env and file are secrets. [Renderer.Secrets] lists them in every
// form in which they can reach the wire, so that evidence can be written
// without them. There is no other way to write a credential in a plan: a literal
// value of Authorization, Cookie and the like is refused.
//
// The value of a template is inserted as it is, with two exceptions. In the
// json body it becomes the content of a JSON string, escaped as one. In a
// regular expression it is quoted, to match itself.
package plan
