#!/usr/bin/env bash
# Tidies the go.mod of every module of go.work, each for itself, as its users
# see it. There is no go work sync: it would raise every module to the highest
# version that any of them needs.
set -euo pipefail
cd "$(dirname "$0")/.."

{
	go list -m -f '{{.Dir}}'
	printf '%s\n' adapter/caddy bench/peers internal/deploycheck internal/tools # not of the workspace
} | while read -r dir; do
	printf 'tidy: %s\n' "$dir"
	(cd "$dir" && GOWORK=off go mod tidy)
done
