#!/bin/sh
# Starts and stops a standalone nats-server and the four roles on this machine.
#
#   sh deploy/local.sh up      logs and process ids go to run/
#   sh deploy/local.sh down    stops exactly the processes that `up` started
#
# The providers' keys come from the environment, as for the planner alone.
set -eu
cd "$(dirname "$0")/.."
dir=run
export NATS_URL="${NATS_URL:-nats://127.0.0.1:4222}"

start() {
	name=$1
	shift
	"$@" >"$dir/$name.log" 2>&1 &
	echo $! >"$dir/$name.pid"
	echo "started $name, process $(cat "$dir/$name.pid"), log $dir/$name.log"
}

# alive NAME… fails, and says why, if one of them has ended by itself.
alive() {
	sleep 1
	for name in "$@"; do
		kill -0 "$(cat "$dir/$name.pid")" 2>/dev/null && continue
		echo "$name has ended; the last of $dir/$name.log:" >&2
		tail -n 3 "$dir/$name.log" >&2
		down >&2
		exit 1
	done
}

up() {
	mkdir -p "$dir" bin
	for pid in "$dir"/*.pid; do
		if [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; then
			echo "$pid is of a process that runs; stop it with: sh deploy/local.sh down" >&2
			exit 1
		fi
	done
	go build -o bin/ ./cmd/... github.com/nats-io/nats-server/v2
	start nats bin/nats-server -c deploy/nats-server.conf
	alive nats
	bin/moorebus init --wait
	start gateway bin/gateway --listen "${MOOREBUS_LISTEN:-127.0.0.1:8080}"
	start planner bin/planner
	start actor bin/actor --tools "${TOOLS:-examples/quickstart.yaml}"
	start observer bin/observer
	alive gateway planner actor observer
	echo "up: http://${MOOREBUS_LISTEN:-127.0.0.1:8080}/"
}

down() {
	stop observer actor planner gateway
	stop nats
}

# stop NAME… asks all of them to end, and waits until they have.
stop() {
	for name in "$@"; do
		[ -e "$dir/$name.pid" ] && kill -TERM "$(cat "$dir/$name.pid")" 2>/dev/null &&
			echo "stopping $name, process $(cat "$dir/$name.pid")"
	done
	for name in "$@"; do
		[ -e "$dir/$name.pid" ] || continue
		while kill -0 "$(cat "$dir/$name.pid")" 2>/dev/null; do sleep 0.1; done
		rm -f "$dir/$name.pid"
	done
}

case "${1:-}" in
up) up ;;
down) down ;;
*)
	echo "usage: sh deploy/local.sh up|down" >&2
	exit 2
	;;
esac
