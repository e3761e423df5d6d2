module github.com/semelhq/semel/bench

go 1.26.0
