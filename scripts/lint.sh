#!/usr/bin/env bash
# Runs every check to the end, says which failed, and fails if one did.
# Needs bin/tools (make tools). Modules are those of go.work, and bench/peers,
# whose dependencies stay out of it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

failed=()

check() {
	local name=$1
	shift
	printf 'lint: %s\n' "$name"
	"$@" || failed+=("$name")
}

format() {
	local list
	# What the go command does not see, and what make builds, is left out.
	list=$(find . -name '.?*' -prune -o -path ./bin -prune -o -name testdata -prune -o \
		-type f -name '*.go' -print0 | xargs -0 -r bin/tools/gofumpt -l) || return 1
	[ -z "$list" ] && return
	printf '%s\n' "$list" 'not formatted: run bin/tools/gofumpt -w on them'
	return 1
}

# A module has to be right without the workspace, as its users see it.
tidy() {
	local dir status=0
	while read -r dir; do
		(cd "$dir" && GOWORK=off go mod tidy -diff) || {
			printf '%s: go.mod or go.sum is not tidy, or could not be checked: run make tidy\n' "$dir"
			status=1
		}
	done < <(
		go list -m -f '{{.Dir}}'
		echo bench/peers
	)
	return $status
}

alone() { (cd bench/peers && GOWORK=off "$@" ./...); }

scripts() {
	local file status=0
	for file in scripts/*.sh .ci/run; do
		bash -n "$file" || status=1
		[ -x "$file" ] || {
			printf '%s is not executable\n' "$file"
			status=1
		}
	done
	return $status
}

check scripts scripts
check gofumpt format
check 'go mod tidy' tidy
check 'go vet' go vet work
check 'go vet, bench/peers' alone go vet
check staticcheck bin/tools/staticcheck work
check 'staticcheck, bench/peers' alone ../../bin/tools/staticcheck
check 'all platforms' bin/tools/platforms linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

if [ ${#failed[@]} -gt 0 ]; then
	printf 'lint: failed:'
	printf ' [%s]' "${failed[@]}"
	printf '\n'
	exit 1
fi
echo 'lint: ok'
