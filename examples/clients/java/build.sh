#!/usr/bin/env bash
# Makes the messages and the client: build.sh FOLDER writes FOLDER/client.jar, which `java -cp JARS Client` runs.
#
# Needs a JDK (17 or later), protoc, protoc-gen-grpc-java, and in CLASSPATH the jars of grpc-java and protobuf-java. On
# Debian: libgrpc-java, libnetty-java, libperfmark-java, protobuf-compiler-grpc-java-plugin and protobuf-compiler; CLASSPATH is then '/usr/share/java/*'.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
protos="$here/../../../protos"
out="$(mkdir -p "$1" && cd "$1" && pwd)"
mkdir -p "$out/src" "$out/classes"
plugin="$(command -v protoc-gen-grpc-java || command -v grpc_java_plugin)"
protoc -I "$protos" --plugin=protoc-gen-grpc-java="$plugin" --java_out="$out/src" --grpc-java_out="$out/src" \
  hmc/v1/translation.proto buf/validate/validate.proto
find "$out/src" -name '*.java' > "$out/sources"
javac -nowarn -proc:none -cp "${CLASSPATH:-/usr/share/java/*}" -d "$out/classes" "@$out/sources" "$here/Client.java"
jar --create --file "$out/client.jar" -C "$out/classes" .
