#!/bin/sh
# Builds a CPU-only Ollama from its Go module into the user's cache directory, unless it is
# there. That takes six minutes on two processors; a build that was interrupted goes on where
# it was. It needs Go, a C++ compiler, and apt for the headers of two libraries: Ollama has
# them in folders named vendor, which Go leaves out of a module.
#
#   build.sh [path]
#
# With path it builds nothing and prints where Ollama is, or will be. MOOREBUS_OLLAMA names
# another binary.
set -eu
version=v0.17.4
malgo=v0.11.24 # the module that has miniaudio.h

dir=${XDG_CACHE_HOME:-$HOME/.cache}/moorebus/ollama-$version
binary=${MOOREBUS_OLLAMA:-$dir/ollama}
if [ "${1:-}" = path ]; then
	echo "$binary"
	exit
fi
if [ -x "$binary" ]; then
	echo "$binary is there"
	exit
fi
if [ "$binary" != "$dir/ollama" ]; then
	echo "MOOREBUS_OLLAMA: there is no $binary" >&2
	exit 1
fi
for tool in go gcc g++ apt-get dpkg; do
	command -v "$tool" >/dev/null || {
		echo "there is no $tool: install it, or name a released ollama in MOOREBUS_OLLAMA" >&2
		exit 1
	}
done

include=$dir/build/usr/include
mkdir -p "$include/miniaudio"
cd "$dir/build"
headers="nlohmann-json3-dev libstb-dev"
if [ ! -d "$include/stb" ]; then
	apt-get download $headers || { apt-get update && apt-get download $headers; }
	for package in *.deb; do dpkg -x "$package" .; done
fi
module=$(go mod download -json "github.com/gen2brain/malgo@$malgo" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
cp -f "$module/miniaudio.h" "$include/miniaudio/"

echo "building Ollama $version"
CGO_ENABLED=1 CGO_CPPFLAGS=-I$include CGO_CFLAGS=-O2 CGO_CXXFLAGS=-O2 GOBIN=$dir/build/bin \
	go install -ldflags "-s -w -X github.com/ollama/ollama/version.Version=${version#v}" "github.com/ollama/ollama@$version"
mv bin/ollama "$binary"
rm -rf "$dir/build"
echo "$binary is built"
