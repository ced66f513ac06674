// Package oci makes root file systems out of container images. It reads images from
// registries, OCI layouts and archives, merges their layers, and keeps the result as
// one EROFS file below the state directory, which all boxes share read-only.
//
// Nothing of an image is trusted. Every byte is verified against the digests of the
// image. Layers are merged in memory: no name, link, owner or mode of an image ever
// reaches the file system of the host, and everything is bounded.
//
// Where to look: registry.go and local.go read images, content.go decompresses and verifies
// layers, merge.go applies their entries to the tree of tree.go, finish.go adds what boxes
// need, store.go keeps the result.
package oci
