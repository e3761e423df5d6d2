package plan

import (
	_ "embed"
	"reflect"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a plan. It says what the
// types and rules of this package say about the form of a plan; what goes beyond
// the form, such as whether a variable exists, only Validate says.
func Schema() []byte { return append([]byte(nil), schema...) }

func reflectOf(p *Plan) reflect.Value { return reflect.ValueOf(p).Elem() }
