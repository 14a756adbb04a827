#!/usr/bin/env bash
# One replica and a fleet of simulated nodes: they get linked, a gateway dies and
# its sibling takes over, the replica restarts and no link changes. Succeeds only
# if everything that it checks on the way holds. Needs the binaries ("make build").
set -euo pipefail
cd "$(dirname "$0")/.."

readonly groups=4 nodes_per_group=2 names=5
readonly links=$((groups * (groups - 1) / 2))  # full mesh
readonly routes=$((groups * groups * names))   # each name: itself, and one route in each other group
readonly patience=20                           # seconds for each wait

dir=$(mktemp -d)
replica=    # process ids of what runs
fleet=
trap cleanup EXIT
trap 'exit 130' INT TERM

cleanup() {
  local code=$?
  trap - EXIT
  for pid in $fleet $replica; do
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
  rm -rf "$dir"
  exit "$code"
}

heading() { printf '\n== %s\n\n' "$*"; }
ok() { echo "ok: $*"; }

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$dir"/*.log >&2
  exit 1
}

# eventually WHAT COMMAND... repeats a command until it succeeds.
eventually() {
  local what=$1 end=$((SECONDS + patience))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what: not within $patience s"
    sleep 0.1
  done
  ok "$what"
}

# free_port prints a port that nothing listens on, below those that the system
# gives to clients.
free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

north=127.0.0.1:$(free_port)
south=127.0.0.1:$(free_port)
while [ "$south" = "$north" ]; do south=127.0.0.1:$(free_port); done

ask() { bin/slim-cp "$@" --server "$north"; }
ctl() { bin/slim-node ctl --control "$dir/fleet.sock" "$@"; }
rows() { tail -n +5; } # of a table: without its heading and column names

start_replica() {
  : >"$dir/replica.out"
  bin/slim-cp serve --config "$dir/slim-cp.yaml" >"$dir/replica.out" 2>>"$dir/replica.log" &
  replica=$!
  eventually "the replica serves" replica_serves
}

replica_serves() {
  kill -0 "$replica" 2>/dev/null || fail "the replica ended"
  grep -q '^control plane started$' "$dir/replica.out"
}

stop_replica() {
  local code=0
  kill -TERM "$replica"
  wait "$replica" || code=$?
  replica=
  [ "$code" -eq 0 ] || fail "the replica ended with exit code $code"
}

fleet_answers() {
  kill -0 "$fleet" 2>/dev/null || fail "the fleet ended"
  ctl nodes >/dev/null 2>&1
}

# matrix waits for the delivery matrix to be complete and prints it.
matrix() {
  ctl matrix --wait "${patience}s" || fail "the delivery matrix is not complete"
}

# routes_applied: all routes are, and none waits or was refused. Withdrawn ones
# stay listed for a minute.
routes_applied() {
  local table
  table=$(ask route list --all)
  [ "$(grep -cw APPLIED <<<"$table")" -eq $routes ] && ! grep -qwE 'PENDING|FAILED' <<<"$table"
}

# link_ids prints the ids of the links that stand, of which there must be one for
# each two groups.
link_ids() { ask link list | rows | awk '{ print $1 }' | sort; }
all_linked() { [ "$(link_ids | wc -l)" -eq $links ]; }

# outgoing NODE and incoming NODE print the ids of the links that the node
# dialled, and of those that it accepted.
outgoing() { ask link list | rows | awk -v node="$1" '$2 == node { print $1 }'; }
incoming() { ask link list | rows | awk -v node="$1" '$3 == node { print $1 }'; }

# linked_without NODE: all groups are linked, and the node has no end of a link.
linked_without() { all_linked && [ -z "$(outgoing "$1")$(incoming "$1")" ]; }

# any_gateway prints a node that holds an end of a link: one that dialled some and
# accepted others, if there is such a node.
any_gateway() {
  ask link list | rows | awk '{ dialled[$2]; accepted[$3]; node = $2 }
    END { for (both in dialled) if (both in accepted) node = both; print node }'
}

# has LINES LINE
has() { grep -qxF "$2" <<<"$1"; }

all_connected() { [ "$(ask node list | grep -cw Connected)" -eq $((groups * nodes_per_group)) ]; }

heading "One replica, its log on disk"
cat >"$dir/slim-cp.yaml" <<YAML
northbound: {endpoint: "$north", tls: {insecure: true}}
southbound: {endpoint: "$south", tls: {insecure: true}}
database: {type: raft, path: "$dir/data"}
topology: {links: [{group: "*", neighbors: ["*"]}]}
YAML
cat "$dir/slim-cp.yaml"
start_replica

heading "$groups groups with $nodes_per_group nodes and $names names each: who reaches how many names of whom"
bin/slim-node fleet --server "$south" --control "$dir/fleet.sock" \
  --groups $groups --nodes-per-group $nodes_per_group --names $names >"$dir/fleet.out" 2>"$dir/fleet.log" &
fleet=$!
eventually "the fleet runs" fleet_answers
ctl matrix 2>/dev/null | head -n $((groups + 1)) || true # as it is now, most likely not complete
echo
matrix
eventually "$links links stand" all_linked
eventually "$routes routes are applied" routes_applied

heading "Nodes, links, and the routes of one gateway"
ask node list
echo
ask link list
gateway=$(any_gateway)
echo
ask route list --origin "$gateway"

heading "The gateway $gateway dies"
sibling=${gateway%-*}-$((3 - ${gateway##*-}))
dialled=$(outgoing "$gateway")
accepted=$(incoming "$gateway")
ctl kill "$gateway"
eventually "$links links stand without $gateway" linked_without "$gateway"
ask link list
echo
for id in $dialled; do
  has "$(outgoing "$sibling")" "$id" || fail "$sibling did not take over link $id"
  ok "$sibling took over link $id"
done
for id in $accepted; do
  ! has "$(link_ids)" "$id" || fail "link $id to $gateway still stands"
  ok "link $id to $gateway was replaced by another"
done
echo
matrix
ok "every message between the living arrives once"

heading "$gateway comes back"
ctl start "$gateway"
matrix
eventually "$routes routes are applied" routes_applied

heading "The replica restarts"
before=$(link_ids)
stop_replica
ok "the replica ended with exit code 0"
start_replica
eventually "all nodes are connected" all_connected
matrix
eventually "$routes routes are applied" routes_applied
[ "$(link_ids)" = "$before" ] || fail "links changed: before: $before; now: $(link_ids)"
ok "no link id changed"
ctl nodes >/dev/null || fail "a node gave up"

heading "Everything held, after $SECONDS s"
