#!/usr/bin/env bash
# Runs every check to the end, says which failed, and fails if one did.
# Needs bin/tools (make tools). Modules are those of go.work, and those whose
# dependencies stay out of it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

failed=()
alone=(adapter/caddy bench/peers internal/deploycheck internal/tools)
platforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64)

# What git sees, with the contents of what differs from the last commit; nothing
# where there is no git to ask.
state() { git status --porcelain 2>/dev/null && git diff HEAD 2>/dev/null | cksum; }
before=$(state)

check() {
	local name=$1
	shift
	printf 'lint: %s\n' "$name"
	"$@" || failed+=("$name")
}

format() {
	local list
	# What the go command does not see, and what make builds, is left out.
	list=$(find . -name '.?*' -prune -o -path ./bin -prune -o \
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
		printf '%s\n' "${alone[@]}"
	)
	return $status
}

# in_module DIR COMMAND... runs it on all packages of a module by itself.
in_module() { (cd "$1" && shift && GOWORK=off "$@" ./...); }

caddy_platforms() { (cd adapter/caddy && GOWORK=off ../../bin/tools/platforms -packages ./... "${platforms[@]}"); }

# go.work.sum has to be whole: the go command adds what it lacks.
rewritten() {
	go list -m all >/dev/null || return 1
	[ "$before" = "$(state)" ] && return
	git status --short
	echo 'a command above changed files of the repository, go.work.sum perhaps: commit the change with what made it necessary'
	return 1
}

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
check staticcheck bin/tools/staticcheck work
check 'all platforms' bin/tools/platforms "${platforms[@]}"
for dir in "${alone[@]}"; do
	check "go vet, $dir" in_module "$dir" go vet
	check "staticcheck, $dir" in_module "$dir" "$PWD/bin/tools/staticcheck"
done
check 'all platforms, adapter/caddy' caddy_platforms # the others are nobody's to import
check 'chart and Compose file' in_module internal/deploycheck go test
check 'no file rewritten' rewritten

if [ ${#failed[@]} -gt 0 ]; then
	printf 'lint: failed:'
	printf ' [%s]' "${failed[@]}"
	printf '\n'
	exit 1
fi
echo 'lint: ok'
