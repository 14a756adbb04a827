#!/usr/bin/env bash
# Runs every fuzz target for a while (default 10s): scripts/fuzz.sh [TIME]
set -euo pipefail
cd "$(dirname "$0")/.."

grep -rlE --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
  sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$file" | while read -r target; do
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "$(dirname "$file")"
  done
done
