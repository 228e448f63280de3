#!/usr/bin/env bash
# Makes the messages and the client: build.sh FOLDER writes FOLDER/client.
#
# Needs go, protoc, protoc-gen-go and protoc-gen-go-grpc. With Debian's golang-google-grpc-dev nothing is downloaded;
# otherwise Go takes the modules of go.mod from its proxy, and the generators have to be as old as these modules:
# go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.31.0 google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.3.0
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
protos="$here/../../../protos"
out="$(mkdir -p "$1" && cd "$1" && pwd)"
package=hmc.example/client
source="$out/src/$package"
mkdir -p "$source"
cp "$here/client.go" "$here/go.mod" "$source"
protoc -I "$protos" --go_out="$out/src" --go-grpc_out="$out/src" \
  --go_opt=Mhmc/v1/translation.proto=$package/hmc/v1 --go-grpc_opt=Mhmc/v1/translation.proto=$package/hmc/v1 \
  --go_opt=Mbuf/validate/validate.proto=$package/buf/validate \
  --go-grpc_opt=Mbuf/validate/validate.proto=$package/buf/validate \
  hmc/v1/translation.proto buf/validate/validate.proto
cd "$source"
if [ -d /usr/share/gocode/src/google.golang.org/grpc ]; then
  GO111MODULE=off GOPATH="$out:/usr/share/gocode" GOCACHE="$out/cache" go build -o "$out/client" .
else
  go mod tidy
  go build -o "$out/client" .
fi
