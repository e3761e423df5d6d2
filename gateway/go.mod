module github.com/semelhq/semel/gateway

go 1.26.0
