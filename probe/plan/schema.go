package plan

import (
	_ "embed"
	"reflect"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a plan. It holds the rules
// of this package about the form of a plan. Only Validate checks what goes
// beyond the form, such as whether a variable exists.
func Schema() []byte { return append([]byte(nil), schema...) }

func reflectOf(p *Plan) reflect.Value { return reflect.ValueOf(p).Elem() }
