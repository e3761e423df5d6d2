module github.com/semelhq/semel/gateway

go 1.26.0

require (
	github.com/go-jose/go-jose/v4 v4.1.8
	github.com/semelhq/semel v0.0.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
)

replace github.com/semelhq/semel => ..
