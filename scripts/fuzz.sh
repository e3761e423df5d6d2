#!/usr/bin/env bash
# Usage: scripts/fuzz.sh TIME
# Fuzzes every fuzz test of the packages in $PKG (default: all) for TIME each,
# one after the other, and fails if one found something. What it found is in
# that package's testdata/fuzz: fix the bug and commit the file with it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
time=${1:?usage: scripts/fuzz.sh TIME}

# go test prints the names of a package's tests, then a line with its path.
# shellcheck disable=SC2086 # several patterns
listed=$(go test -list '^Fuzz' ${PKG:-work}) || {
	printf '%s\n' "$listed"
	exit 1
}

passed=0
failed=()
while read -r package name; do
	printf 'fuzz: %s in %s\n' "$name" "$package"
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package"; then
		passed=$((passed + 1))
	else
		failed+=("$package.$name")
	fi
done < <(awk '/^Fuzz/ { names[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, names[i]; n = 0 }' <<<"$listed")

for name in ${failed[@]+"${failed[@]}"}; do
	printf 'failed: %s\n' "$name"
done
printf '%d passed, %d failed\n' "$passed" "${#failed[@]}"
[ "${#failed[@]}" -eq 0 ] && [ "$passed" -gt 0 ]
