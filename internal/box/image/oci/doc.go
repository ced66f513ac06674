// Package oci makes root file systems out of container images. It reads images from
// registries, OCI layouts and archives, merges their layers, and keeps the result as
// one EROFS file below the state directory, which all boxes share read-only.
//
// Nothing of an image is trusted. Every byte is verified against the digests of the
// image. Layers are merged in memory: no name, link, owner or mode of an image ever
// reaches the file system of the host, and everything is bounded.
package oci
