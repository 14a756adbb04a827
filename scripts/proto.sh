#!/usr/bin/env bash
# Makes the Go code of the wire schemas from proto/**/*.proto.
# "scripts/proto.sh check" fails if the committed code is not current.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$PWD/bin/tools
out=.
if [ "${1:-}" = check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
if ! command -v protoc >/dev/null || [ ! -e /usr/include/google/protobuf/struct.proto ]; then
  echo "proto.sh: needs protoc and its include files: apt-get install protobuf-compiler libprotobuf-dev" >&2
  exit 1
fi
GOBIN=$bin go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN=$bin go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
PATH=$bin:$PATH protoc -I . \
  --go_out="$out" --go_opt=module=github.com/slim-cp/slim-cp \
  --go-grpc_out="$out" --go-grpc_opt=module=github.com/slim-cp/slim-cp \
  $(find proto -name '*.proto' | sort)
if [ "${1:-}" = check ]; then
  (cd "$out" && find proto -name '*.go' | sort) | while read -r f; do
    cmp -s "$out/$f" "$f" || { echo "proto.sh: $f is not current: run make proto" >&2; exit 1; }
  done
fi
