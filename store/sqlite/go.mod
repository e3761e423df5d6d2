module github.com/semelhq/semel/store/sqlite

go 1.26.0

require modernc.org/sqlite v1.60.1

require (
	github.com/semelhq/semel v0.0.0
	golang.org/x/sys v0.48.0
	modernc.org/libc v1.77.1
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.0.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

replace github.com/semelhq/semel => ../..
