#!/usr/bin/env bash
# Builds every module for every platform semel supports, without cgo.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

status=0
for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
	printf 'build: %s\n' "$platform"
	export CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/}
	go build work || status=1
	(cd adapter/caddy && GOWORK=off go build ./...) || status=1
done
exit $status
