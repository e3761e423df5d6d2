module github.com/semelhq/semel/store/sqlite

go 1.26.0
