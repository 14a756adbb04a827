# Three replicas of slim-cp on this machine and a fleet of simulated nodes, for
# demo.sh and up.sh, which source this file. TLS is on where nodes and replicas
# connect, plaintext where operators do. Everything lives in a directory that goes
# at the end; only processes that were started here are ended.
# Needs bash 5, openssl and the binaries ("make build").

readonly replicas=3 groups=6 nodes_per_group=2 names=3
readonly patience=30 # seconds for each wait
readonly highest_port=32000

dir=$(mktemp -d)
declare -a north south peer pid # by the number of a replica, from 1
declare -a home                 # the replica to which a group's nodes were sent
fleet= watcher=                 # process ids
trap cleanup EXIT
trap 'exit 130' INT TERM

cleanup() {
  local code=$? each
  trap - EXIT
  trap '' INT TERM # a second Ctrl-C must not leave processes behind
  for each in $watcher $fleet "${pid[@]}"; do
    if [ -n "$each" ]; then kill -TERM "$each" 2>/dev/null || true; fi
  done
  wait || true
  rm -rf "$dir"
  exit "$code"
}

heading() { printf '\n== %s\n\n' "$*"; }
ok() { echo "ok: $*"; }

fail() {
  echo "FAILED: $*" >&2
  tail -n 15 "$dir"/*.log >&2
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

# now prints milliseconds.
now() { local LC_ALL=C at=$EPOCHREALTIME; echo $((${at/./} / 1000)); }

# choose_ports gives each replica three ports that nothing listens on, below those
# that the system gives to clients.
choose_ports() {
  local i=1 port=$((10000 + RANDOM % 10000))
  local -a free=()
  while [ ${#free[@]} -lt $((3 * replicas)) ]; do
    [ $((++port)) -lt $highest_port ] || fail "no free ports"
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || free+=("127.0.0.1:$port")
  done
  for ((i = 1; i <= replicas; i++)); do
    north[i]=${free[3 * i - 3]} south[i]=${free[3 * i - 2]} peer[i]=${free[3 * i - 1]} pid[i]=
  done
}

# make_certificates makes an authority and one certificate for this machine, which
# serves as server and as client. docs/deploy.md explains the commands.
make_certificates() {
  command -v openssl >/dev/null || fail "openssl is not installed: it makes the certificates"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj "/CN=slim-cp authority" -keyout "$dir/ca.key" -out "$dir/ca.pem" 2>"$dir/openssl.log"
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -subj "/CN=slim-cp" -keyout "$dir/replica.key" -out "$dir/replica.csr" 2>>"$dir/openssl.log"
  printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' >"$dir/replica.ext"
  openssl x509 -req -days 2 -in "$dir/replica.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial \
    -extfile "$dir/replica.ext" -out "$dir/replica.pem" 2>>"$dir/openssl.log"
}

# configure I writes the file of a replica.
configure() {
  local i=$1 certificate="{type: file, cert: \"$dir/replica.pem\", key: \"$dir/replica.key\"}"
  cat >"$dir/cp-$i.yaml" <<YAML
northbound: {endpoint: "${north[i]}", tls: {insecure: true}}
southbound: {endpoint: "${south[i]}", tls: {source: $certificate}}
cluster:
  name: cp-$i
  data_dir: "$dir/cp-$i"
  endpoint: "${peer[i]}"
  tls: {source: $certificate, client_ca: {type: file, path: "$dir/ca.pem"}}
  autopilot: {stabilization_time: 1s}
YAML
}

# ask I COMMAND... has an operator ask a replica.
ask() { local i=$1; shift; bin/slim-cp "$@" --server "${north[i]}"; }
ctl() { bin/slim-node ctl --control "$dir/fleet.sock" "$@"; }

# launch I starts a replica, which need not be a member yet.
launch() {
  local i=$1
  : >"$dir/cp-$i.out"
  bin/slim-cp serve --config "$dir/cp-$i.yaml" >"$dir/cp-$i.out" 2>>"$dir/cp-$i.log" &
  pid[i]=$!
  eventually "cp-$i runs" says "$i" '^control plane started$\|^waiting: '
}

says() {
  kill -0 "${pid[$1]}" 2>/dev/null || fail "cp-$1 ended"
  grep -q "$2" "$dir/cp-$1.out"
}

# accepts_nodes I: a member that knows a leader lets nodes in.
accepts_nodes() { says "$1" '^control plane started$'; }

# shoot I ends a replica with SIGKILL.
shoot() {
  kill -KILL "${pid[$1]}"
  { wait "${pid[$1]}" || true; } 2>/dev/null
  pid[$1]=
}

start_replicas() {
  local i
  choose_ports
  make_certificates
  for ((i = 1; i <= replicas; i++)); do
    configure "$i"
    launch "$i"
  done
}

fleet_answers() {
  kill -0 "$fleet" 2>/dev/null || fail "the fleet ended"
  ctl nodes >/dev/null 2>&1
}

# start_fleet starts nodes that know all replicas, the last one first: the order in
# which a node tries them is that of the addresses behind one DNS name.
start_fleet() {
  local i group servers=
  for ((i = replicas; i > 0; i--)); do servers+=${servers:+,}${south[i]}; done
  bin/slim-node fleet --server "$servers" --tls-ca "$dir/ca.pem" --control "$dir/fleet.sock" \
    --groups $groups --nodes-per-group $nodes_per_group --names $names >"$dir/fleet.out" 2>"$dir/fleet.log" &
  fleet=$!
  eventually "the fleet answers" fleet_answers
  eventually "all its nodes are registered" grep -q '^fleet started$' "$dir/fleet.out"
  for ((group = 1; group <= groups; group++)); do home[group]=1; done
}

# move_nodes I starts every third group again. Its nodes then try the replicas in
# order, and the first one that lets them in is the one that has just joined.
move_nodes() {
  local i=$1 group node
  for ((group = i; group <= groups; group += replicas)); do
    for ((node = 1; node <= nodes_per_group; node++)); do
      ctl kill "group-$group/node-$node"
      ctl start "group-$group/node-$node"
    done
    home[group]=$i
  done
}

# link_groups has every group linked with every other one.
link_groups() {
  local a b count=0
  for ((a = 1; a <= groups; a++)); do
    for ((b = a + 1; b <= groups; b++)); do
      ask 1 link add "group-$a" "group-$b" >/dev/null
      count=$((count + 1))
    done
  done
  ok "an operator linked every group with every other one: $count links"
}

# form_cluster has the replicas join the first one, and the fleet follow.
form_cluster() {
  local i
  ask 1 cluster init
  eventually "cp-1 lets nodes in" accepts_nodes 1
  start_fleet
  link_groups
  for ((i = 2; i <= replicas; i++)); do
    ask "$i" cluster join "${peer[1]}"
    eventually "cp-$i lets nodes in" accepts_nodes "$i"
    move_nodes "$i"
  done
  eventually "one replica may fail" tolerates 1
  eventually "each replica serves its share of the nodes" spread
}

# members prints a line for each replica: name, role, sessions.
members() { ask "$1" cluster status | awk -F '  +' '$3 ~ /^cp-[0-9]+-/ { print $2, $4, $11 }'; }

# tolerates N: by the word of every running replica so many may fail.
tolerates() {
  local i
  for ((i = 1; i <= replicas; i++)); do
    [ -z "${pid[i]}" ] || ask "$i" cluster status 2>/dev/null | grep -qx "failure tolerance: $1" || return 1
  done
}

# spread: each replica holds the streams of the nodes that were sent to it.
spread() {
  local i group expected table
  table=$(members 1)
  for ((i = 1; i <= replicas; i++)); do
    expected=0
    for ((group = 1; group <= groups; group++)); do
      if [ "${home[group]}" -eq "$i" ]; then expected=$((expected + nodes_per_group)); fi
    done
    awk -v name="cp-$i" -v want=$expected '$1 == name && $3 == want { found = 1 } END { exit !found }' <<<"$table" || return 1
  done
}

# matrix waits for the delivery matrix to be complete and prints it.
matrix() {
  ctl matrix --wait "${patience}s" || fail "the delivery matrix is not complete"
}

# converged I waits until every node holds what it should, by the word of a replica.
converged() {
  ask "$1" status --wait --timeout "${patience}s" || fail "not converged within $patience s"
}
