module github.com/semelhq/semel/probe

go 1.26.0

require (
	golang.org/x/net v0.60.0
	golang.org/x/sys v0.48.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/semelhq/semel v0.0.0
	github.com/semelhq/semel/gateway v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/text v0.42.0 // indirect
)

replace github.com/semelhq/semel => ../

replace github.com/semelhq/semel/gateway => ../gateway
