// Package importer makes a draft of a probe plan from a request that somebody
// already has: a curl command, an entry of a HAR file, of a Postman collection
// or of what Burp saved, or an operation of an OpenAPI document.
//
// A draft is the text of a plan with comments. It parses, and validates except
// for what only its author can say, which stands as {{fill "..."}}: how the
// effect shows, above all. It allows no address, and counts the target as
// production until the author says otherwise.
//
// Credentials never get into a draft. They are replaced by {{env "NAME"}}, and
// Draft.Secrets lists what NAME stands for. What counts as a credential is
// decided by names: header fields, cookies, parameters and members of JSON
// and forms. A secret under an innocent name cannot be seen; a secret that was
// seen is replaced wherever else it stands.
package importer
