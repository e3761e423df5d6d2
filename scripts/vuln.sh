#!/usr/bin/env bash
# Looks up known vulnerabilities in what every module calls, as its users build it:
# without the workspace. Fails if it finds one, or if it could not look. VULNDB is
# the address of the database, if it is not to be the usual one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# Symbols of other modules are looked up in the source, so what is needed is downloaded.
(cd internal/tools && CGO_ENABLED=0 GOWORK=off go build -o ../../bin/tools/ golang.org/x/vuln/cmd/govulncheck) || exit
root=$PWD
found=()
while read -r dir; do
	name=.${dir#"$root"}
	printf 'vuln: %s\n' "$name"
	out=$(cd "$dir" && GOWORK=off "$root/bin/tools/govulncheck" ${VULNDB:+-db "$VULNDB"} ./... 2>&1)
	case $? in
	0) ;;
	3)
		printf '%s\n' "$out"
		found+=("$name")
		;;
	*)
		printf '%s\n' "$out"
		cat >&2 <<-'EOF'
			vuln: could not look: nothing is known about vulnerabilities, neither good nor bad.
			If the message above is about the network, the database of vulnerabilities was not
			reached. Run make vuln again where it can be, or name a copy of it:
			make vuln VULNDB=file:///path/to/it. Nothing was changed.
		EOF
		exit 2
		;;
	esac
done < <(
	go list -m -f '{{.Dir}}'
	printf "%s\n" "$root"/adapter/caddy "$root"/bench/peers "$root"/internal/deploycheck "$root"/internal/tools
)
if [ ${#found[@]} -gt 0 ]; then
	printf 'vuln: found in'
	printf ' [%s]' "${found[@]}"
	printf '\n'
	exit 1
fi
echo 'vuln: none known'
