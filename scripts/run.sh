#!/usr/bin/env bash
# Starts the example service, the gateway before it and the lab, says what to try,
# and stops them on Ctrl-C or SIGTERM. Needs bin/semel and bin/orders (make build).
set -uo pipefail
cd "$(dirname "$0")/.." || exit

orders=${ORDERS:-127.0.0.1:9000}
gateway=${GATEWAY:-127.0.0.1:8080}
lab=${LAB:-127.0.0.1:9003}
lab_pid=
orders_pid=
gateway_pid=

die() {
	printf 'run: %s\n' "$*" >&2
	exit 1
}

# Everything is done with bash alone: curl may be missing.
reachable() { (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }

answers() {
	(
		exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || exit 1
		printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$2" "$1" >&3
		read -r -t 5 line <&3 && [[ $line == "HTTP/1.1 200"* ]]
	) 2>/dev/null
}

# The gateway goes first: what it has sent on needs the service to finish.
# shellcheck disable=SC2317 # the trap calls it
stop() {
	trap '' INT TERM HUP
	local pid i
	for pid in $lab_pid $gateway_pid $orders_pid; do
		kill -TERM "$pid" 2>/dev/null || continue
		# Longer than the gateway's own limit for draining.
		for ((i = 0; i < 400; i++)); do
			kill -0 "$pid" 2>/dev/null || continue 2
			sleep 0.1
		done
		printf 'run: process %s does not end; killed\n' "$pid" >&2
		kill -KILL "$pid" 2>/dev/null
	done
	[ -z "$orders_pid" ] || echo 'run: stopped'
}

await() { # name, address, path, pid
	local i
	for ((i = 0; i < 300; i++)); do
		kill -0 "$4" 2>/dev/null || die "$1 ended; its messages are above"
		answers "$2" "$3" && return
		sleep 0.1
	done
	die "$1 does not answer on $2"
}

for program in semel orders; do
	[ -x "bin/$program" ] || die "bin/$program is missing: use make run"
done
reachable "$orders" && die "$orders is in use; free it, or choose another: make run ORDERS=127.0.0.1:9001"
reachable "$gateway" && die "$gateway is in use; free it, or choose another: make run GATEWAY=127.0.0.1:8081"
reachable "$lab" && die "$lab is in use; free it, or choose another: make run LAB=127.0.0.1:9004"

umask 077
mkdir -p .run
trap stop EXIT
trap 'exit 0' INT TERM HUP

# Each in a process group of its own: Ctrl-C is for this script, which stops
# them in order.
set -m
bin/orders --listen "$orders" --db .run/orders.db </dev/null &
orders_pid=$!
set +m
await orders "$orders" /counters $orders_pid

set -m
bin/semel gateway --upstream "http://$orders" --listen "$gateway" --store sqlite:.run/semel.db </dev/null &
gateway_pid=$!
set +m
await 'the gateway' "$gateway" /counters $gateway_pid

set -m
bin/semel lab --listen "$lab" </dev/null &
lab_pid=$!
set +m
await 'the lab' "$lab" /lab/switches $lab_pid

# Records outlive a restart, so each run shows keys of its own.
key=try-$(date +%s)
post="curl -si -X POST -H 'Content-Type: application/json'"
cat <<EOF

orders, unprotected:  http://$orders
through the gateway:  http://$gateway      (Ctrl-C stops all)
the lab:              http://$lab      double-click, watch it charge twice, and switch the defences on

A page that keeps one key for each order: open http://$gateway/ and double-click. Two seconds after the response, a click is another order.

Try in another terminal, in this folder:

# one order: run it twice, and the second response is a replay of the first
$post -H 'Idempotency-Key: "$key-a"' -d '{"item":"book","quantity":1}' http://$gateway/orders

# another quantity under the same key: 422, and no order
$post -H 'Idempotency-Key: "$key-a"' -d '{"item":"book","quantity":2}' http://$gateway/orders

# past the gateway: run it twice, two orders
$post -H 'Idempotency-Key: "$key-b"' -d '{"item":"book","quantity":1}' http://$orders/orders

# twenty at once under one key: one order; 409 means that it is still in progress
(for i in \$(seq 20); do curl -s -o /dev/null -w '%{http_code}\n' -X POST -H 'Content-Type: application/json' -H 'Idempotency-Key: "$key-c"' -d '{"item":"pen","quantity":1}' http://$gateway/orders & done; wait) | sort | uniq -c

# how many there are now
curl -s http://$gateway/counters

# what the gateway knows
bin/semel keys list --store sqlite:.run/semel.db
bin/semel audit search --store sqlite:.run/semel.db

EOF
command -v curl >/dev/null || printf 'curl is not installed here: apt-get install -y curl\n\n'

# wait returns early for a signal, so that the trap runs at once.
while kill -0 $orders_pid 2>/dev/null && kill -0 $gateway_pid 2>/dev/null && kill -0 $lab_pid 2>/dev/null; do
	sleep 1 >/dev/null 2>&1 &
	wait $!
done
die 'one of the three ended by itself; its messages are above'
