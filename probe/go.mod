module github.com/semelhq/semel/probe

go 1.26.0

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
	go.yaml.in/yaml/v4 v4.0.0-rc.6
	golang.org/x/net v0.60.0
	golang.org/x/sys v0.48.0
)

require github.com/dunglas/httpsfv v1.1.2 // indirect

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/semelhq/semel v0.0.0
	github.com/semelhq/semel/gateway v0.0.0
	github.com/semelhq/semel/internal/strict v0.0.0
	golang.org/x/text v0.42.0 // indirect
)

replace github.com/semelhq/semel => ../

replace github.com/semelhq/semel/gateway => ../gateway

replace github.com/semelhq/semel/internal/strict => ../internal/strict
