module github.com/semelhq/semel/adapter/grpc

go 1.26.0

require (
	github.com/semelhq/semel v0.0.0
	github.com/semelhq/semel/adapter/internal/rpc v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)

replace (
	github.com/semelhq/semel => ../..
	github.com/semelhq/semel/adapter/internal/rpc => ../internal/rpc
)
