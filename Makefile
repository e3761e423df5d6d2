# Each target that has a "##" comment is listed by make help.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# A fresh machine may have Go unpacked without having it in its PATH.
export PATH := $(PATH):/usr/local/go/bin

# Only make build stamps the revision, and only where git tells it: not in a
# clone that belongs to another user.
export GOFLAGS := -buildvcs=false
STAMP = -buildvcs=$(shell git status --porcelain >/dev/null 2>&1 && echo auto || echo false)

RACE      ?= auto
TIMEOUT   ?= 30m
PKG       ?= work
LONGEST   ?= cmd/semel store/sqlite store/postgres cmd/semel/internal/lab probe internal/matrix
ARGS      ?=
BENCH     ?= .
BENCHTIME ?= 1s
FUZZTIME  ?= 60s
DURATION  ?= 1m
SUBJECT   ?= gateway-sqlite
ROUNDS    ?= 5
RECORDS   ?= 10000,1000000
STORE     ?= sqlite
VULNDB    ?=

.PHONY: help run build test quick torture lint cross tidy bench bench-peers growth lab-matrix probe-truth fuzz tools vuln cut release release-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  Variables: PKG=./store/... ARGS="-run TestName" TIMEOUT=30m RACE=auto|on|off'
	@echo '             BENCH=regexp BENCHTIME=1s FUZZTIME=60s ORDERS=host:port GATEWAY=host:port'
	@echo '             SUBJECT=gateway-sqlite|gateway-postgres|payments|shop DURATION=1m'
	@echo '             ROUNDS=5 RECORDS=10000,1000000 STORE=sqlite|postgres'
	@echo '             VERSION=v1.2.3 VULNDB=file:///...'

run: build ## start the example service and the gateway before it; Ctrl-C stops both
	@exec scripts/run.sh

build: ## build bin/semel and bin/orders
	@scripts/build.sh bin/semel ./cmd/semel $(STAMP)
	@scripts/build.sh bin/orders ./examples/orders $(STAMP)

test: tools ## run the tests of every module, with the race detector where it works
	@echo 'testing $(PKG): a package is named when it has ended; on a new machine all is compiled first, which takes minutes'
	@bin/tools/testall -race=$(RACE) -timeout=$(TIMEOUT) -packages='$(PKG)' -first='$(LONGEST)' -alone='adapter/caddy internal/tools' -- $(ARGS)

quick: ## run the tests that take a minute together, from go test's cache where nothing changed
	go test -short -p 4 $(ARGS) $(if $(filter work,$(PKG)),$(addprefix ./,$(LONGEST))) $(PKG)

# The tests have a PostgreSQL server of their own, and the example.
torture: build ## kill, pause and cut off gateways, or another SUBJECT, for DURATION, and check what is left
ifeq ($(SUBJECT),gateway-sqlite)
	bin/semel torture --duration $(DURATION) $(ARGS)
else
	SEMEL_TORTURE_DURATION=$(DURATION) go test -count=1 -timeout 0 -v \
		-run '^TestTorture$(patsubst shop,Shop,$(patsubst payments,Payments,$(patsubst gateway-postgres,Postgres,$(SUBJECT))))$$' $(ARGS) ./cmd/semel
endif

lint: tools ## check format, vet, staticcheck, go.mod drift and all platforms
	@scripts/lint.sh

cross: ## build every module for all platforms
	@scripts/cross.sh

tidy: ## tidy the go.mod of every module
	@scripts/tidy.sh

bench: ## run the benchmarks of every module
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout 0 $(ARGS) $(PKG)

bench-peers: ## measure beside other libraries and by hand, ROUNDS times, in one table
	@mkdir -p bin
	@cd bench/peers && GOWORK=off go test -count=1 . && GOWORK=off go build -o ../../bin/peers .
	@bin/peers -rounds $(ROUNDS) -time $(BENCHTIME) $(ARGS)

growth: ## measure a STORE as it grows to so many RECORDS
	@SEMEL_GROWTH_RECORDS=$(RECORDS) SEMEL_GROWTH_STORE=$(STORE) go test -count=1 -timeout 0 -v -run '^TestGrowth$$' $(ARGS) ./bench

lab-matrix: ## probe every operation of the lab under every setting, and compare with the truth
	go test -count=1 -timeout 0 -v -run '^TestProbeTellsTheTruth$$' $(ARGS) ./cmd/semel/internal/lab -args -matrix

probe-truth: ## run the probe against all of its targets, each with three sets of values
	go test -count=1 -timeout 0 -run '^(TestTargets|TestReach|TestFiner|TestReportsAreConsistent)$$' $(ARGS) ./probe -seeds 3

vuln: ## look up known vulnerabilities in what the modules call; needs the network
	@VULNDB='$(VULNDB)' scripts/vuln.sh

cut: ## make the commit and the tags of release VERSION=v1.2.3, here alone
	@cd internal/tools && CGO_ENABLED=0 GOWORK=off go build -o ../../bin/tools/ ./cmd/release
	@bin/tools/release cut '$(VERSION)'

release: ## build programs, image, SBOMs and checksums of release VERSION into dist/VERSION
	@cd internal/tools && CGO_ENABLED=0 GOWORK=off go build -o ../../bin/tools/ ./cmd/release
	@bin/tools/release dist '$(VERSION)' 'dist/$(VERSION)'

release-test: ## cut this tree in a clone, then install, build and run it as its users do
	cd internal/tools && SEMEL_TEST_RELEASE=whole GOWORK=off go test -count=1 -timeout 0 -v $(ARGS) ./cmd/release

fuzz: ## fuzz every fuzz test for FUZZTIME
	@PKG='$(PKG)' scripts/fuzz.sh $(FUZZTIME)

# The versions are those of internal/tools/go.mod. Outside of the workspace,
# so that no other module's requirements can change them.
tools:
	@mkdir -p bin/tools
	@[ -x bin/tools/testall ] || echo 'building bin/tools: a minute or two on a new machine'
	@cd internal/tools && CGO_ENABLED=0 GOWORK=off go build -o ../../bin/tools/ mvdan.cc/gofumpt honnef.co/go/tools/cmd/staticcheck ./cmd/testall ./cmd/platforms

clean: ## remove what was built and what make run has stored
	rm -rf bin dist .run
