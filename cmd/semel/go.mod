module github.com/semelhq/semel/cmd/semel

go 1.26.0
