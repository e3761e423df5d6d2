#!/usr/bin/env bash
# Usage: scripts/build.sh PROGRAM PACKAGE [FLAGS OF GO BUILD]
# Builds a program, and says how far it is where that takes a while: go build says
# nothing while it compiles, for minutes on a new machine.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1 package=$2
shift 2

# -v names each package that has to be compiled; the other lines are messages.
progress() {
	local line n=0
	while IFS= read -r line; do
		if ! [[ $line =~ ^[A-Za-z0-9][A-Za-z0-9_./~-]*$ ]]; then
			printf '%s\n' "$line"
			continue
		fi
		if [ $((++n)) -eq 1 ]; then
			printf 'building %s: what has not been compiled before is now; the first time that takes minutes\n' "$program"
		fi
		if [ $((n % 50)) -eq 0 ] || [ "$line" = modernc.org/sqlite/lib ]; then
			printf 'building %s: %d packages so far, at %s\n' "$program" $n "$line"
		fi
	done
}

go build -v "$@" -o "$program" "$package" 2>&1 | progress >&2
