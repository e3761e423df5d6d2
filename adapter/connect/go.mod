module github.com/semelhq/semel/adapter/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/semelhq/semel v0.0.0
	github.com/semelhq/semel/adapter/internal/rpc v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
)

replace (
	github.com/semelhq/semel => ../..
	github.com/semelhq/semel/adapter/internal/rpc => ../internal/rpc
)
