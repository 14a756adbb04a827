#!/usr/bin/env bash
# Three replicas and a fleet of simulated nodes that run until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cluster.sh

heading "Three replicas and $((groups * nodes_per_group)) nodes"
start_replicas
form_cluster
matrix
echo
ask 1 cluster status

heading "Running until Ctrl-C; then everything goes, $dir too"
for ((i = 1; i <= replicas; i++)); do
  echo "cp-$i: operators ${north[i]}, nodes ${south[i]} (TLS), replicas ${peer[i]} (TLS), process ${pid[i]}, log $dir/cp-$i.log"
done
cat <<TEXT

Try, in another terminal:

  export SLIM_CP_SERVER=${north[2]}
  bin/slim-cp cluster status
  bin/slim-cp status --wait
  bin/slim-cp node list
  bin/slim-cp explain link group-1 group-2
  bin/slim-node ctl --control $dir/fleet.sock matrix
  bin/slim-cp cluster transfer-leader
  bin/slim-cp snapshot save state.snapshot

Take a replica away, look, and bring it back:

  kill -9 ${pid[1]}
  bin/slim-cp cluster status
  bin/slim-node ctl --control $dir/fleet.sock matrix --wait 15s
  bin/slim-cp serve --config $dir/cp-1.yaml

TEXT
wait "$fleet" || fail "the fleet ended"
