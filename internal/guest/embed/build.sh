#!/bin/sh
# Builds the agent for GLOVEBOX_GUEST_ARCH (default: the architecture that the
# program is built for) into bin/.
set -eu
cd "$(dirname "$0")"
arch=${GLOVEBOX_GUEST_ARCH:-${GOARCH:-$(go env GOARCH)}}
out=bin/guest-linux-$arch
CGO_ENABLED=0 GOOS=linux GOARCH=$arch \
	go build -trimpath -ldflags "-s -w -buildid=" -o "$out.tmp" ../../../cmd/glovebox-guest
mv "$out.tmp" "$out"
