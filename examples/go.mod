module github.com/semelhq/semel/examples

go 1.26.0
