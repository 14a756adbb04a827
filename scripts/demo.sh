#!/usr/bin/env bash
# Three replicas and a fleet of simulated nodes. The leader is killed, the fleet
# goes on; a saved state is restored, and the fleet follows. Succeeds only if
# everything that it checks on the way holds. Needs the binaries ("make build").
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cluster.sh

# leader I prints the number of the replica that leads by the word of another.
leader() { members "$1" | sed -nE 's/^cp-([0-9]+) leader .*/\1/p'; }

leads() { [ -n "$(leader "$1" 2>/dev/null)" ]; }

link_ids() { ask "$1" link list | awk '$1 ~ /^[0-9a-f]+-/ { print $1 }' | sort; }

# watch_matrix START writes a matrix, and the time since START before it, again and
# again until the file "enough" is there.
watch_matrix() {
  local at
  while [ ! -e "$dir/enough" ]; do
    at=$(($(now) - $1))
    echo "at $at"
    ctl matrix 2>/dev/null || true
  done
}

# judge GROUPS reads such matrices. Between the groups in the list every message
# must arrive in each of them. Prints how many there were, and from when on all of
# them were complete.
judge() {
  awk -v list="$1" '
    BEGIN { split(list, names); for (i in names) kept[names[i]] }
    function close_sample() { if (at == "") return; samples++; if (!rows) broken = 1; if (bad) complete = ""; else if (complete == "") complete = at }
    $1 == "at" { close_sample(); at = $2; bad = 0; rows = 0; next }
    $1 == "FROM" { for (i = 2; i <= NF; i++) column[i] = $i; next }
    $1 ~ /^group-[0-9]+$/ {
      rows++
      for (i = 2; i <= NF; i++) {
        split($i, part, "/")
        if ($i ~ /^[0-9]+\/[0-9]+$/ && part[1] == part[2]) continue
        bad = 1
        if ($1 in kept && column[i] in kept) { print "after " at " ms " $1 " reached " $i " of " column[i]; broken = 1 }
      }
      next
    }
    /gave up/ { print; broken = 1 }
    END { close_sample(); if (samples == 0 || complete == "") broken = 1; print samples, complete == "" ? "never" : complete; exit broken }'
}

heading "Three replicas start; one founds the cluster, nodes come, two replicas join"
start_replicas
cat "$dir/cp-1.yaml"
echo
form_cluster
echo
ask 1 cluster status

heading "$groups groups with $nodes_per_group nodes and $names names each: who reaches how many names of whom"
matrix
converged 2

victim=$(leader 1)
[ -n "$victim" ] || fail "nobody leads"
survivor=$((victim % replicas + 1))
kept=
moved=0
for ((group = 1; group <= groups; group++)); do
  if [ "${home[group]}" -eq "$victim" ]; then moved=$((moved + nodes_per_group)); else kept+=" group-$group"; fi
done
before=$(link_ids "$survivor")

heading "The leader, cp-$victim, is killed (SIGKILL)"
echo "$moved nodes have their stream there. They lose it, cut the links that they dialled, and connect to another replica."
echo "Between ${kept# }, whose nodes are with the other replicas, no message may get lost."
echo
start=$(now)
shoot "$victim"
watch_matrix "$start" >"$dir/samples" &
watcher=$!
ask "$survivor" segment add written-after-the-failure || fail "no change could be made"
ok "an operator could make a change again $(($(now) - start)) ms after the kill"
eventually "another replica leads" leads "$survivor"
matrix
touch "$dir/enough"
wait "$watcher"
watcher=
verdict=$(judge "$kept" <"$dir/samples") || fail "messages got lost: $verdict"
read -r samples complete <<<"$verdict"
ok "the matrix was looked at $samples times meanwhile: between ${kept# } every message arrived each time"
ok "between all groups every message arrived from $complete ms after the kill on"
ctl nodes >/dev/null || fail "a node gave up"
ok "no node gave up"
converged "$survivor"
[ "$(link_ids "$survivor")" = "$before" ] || fail "links changed: before: $before; now: $(link_ids "$survivor")"
ok "no link was replaced: all $(wc -l <<<"$before") ids are as before"
echo
ask "$survivor" cluster status

heading "cp-$victim comes back"
launch "$victim"
eventually "it lets nodes in" accepts_nodes "$victim"
eventually "one replica may fail again" tolerates 1
ask "$victim" segment list | grep -q written-after-the-failure || fail "it lacks what was changed while it was away"
ok "it knows what was changed while it was away"
matrix

heading "The state is saved, then an operator makes a mistake"
ask "$survivor" snapshot save "$dir/state.snapshot"
for ((group = 2; group <= groups; group++)); do ask "$survivor" link remove group-1 "group-$group"; done

# isolated: nothing passes between group-1 and the others, and everything among them.
isolated() {
  awk '$1 ~ /^group-/ {
    rows++
    for (i = 2; i <= NF; i++) { split($i, part, "/"); if (part[1] != (($1 == "group-1") == (i == 2) ? part[2] : 0)) bad = 1 }
  } END { exit bad || !rows }' < <(ctl matrix 2>/dev/null)
}
eventually "group-1 is cut off, and the others still reach each other" isolated
ctl matrix 2>/dev/null | head -n $((groups + 1)) || true

heading "The saved state is restored, while everything runs"
start=$(now)
ask "$victim" snapshot restore "$dir/state.snapshot"
matrix
ok "every message arrives again $(($(now) - start)) ms after the restore began"
converged "$survivor"
ctl nodes >/dev/null || fail "a node gave up"
eventually "one replica may fail" tolerates 1

heading "Everything held, after $SECONDS s"
