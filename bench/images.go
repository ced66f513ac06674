//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// imagesScenario measures the first box of an image that is not unpacked and of one that
// is, by whole commands as podman's, and the memory of ten boxes of it.
func imagesScenario(ctx context.Context, b *bench) error {
	const (
		coldName   = "glovebox run --image, 300 MB, first box: unpack, and echo 1"
		warmName   = "glovebox run --image, 300 MB, unpacked, and echo 1"
		memoryName = "idle box, Python of the image, each of ten"
	)
	if !b.offers(ctx, "glovebox image pull", "image", "pull") {
		b.add(
			report.Absent("images.cold", coldName, notOffered),
			report.Absent("images.warm", warmName, notOffered),
			report.Absent("images.memory", memoryName+" (PSS)", notOffered),
		)
		return nil
	}
	var err error
	if b.short, err = os.MkdirTemp("", "gb-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.short)
	dir := filepath.Join(b.dir, "layout")
	made, err := b.writeImage(ctx, dir, 300e6)
	if err != nil {
		return err
	}
	image := "oci:" + dir
	// podman makes a name of the path, which may have no hidden directory.
	named := filepath.Join(b.short, "layout")
	if err := os.Symlink(dir, named); err != nil {
		return err
	}
	const ofImage = "GLOVEBOX_PYTHON=" // b.python is one of the machine
	env := b.environment("images", ofImage)
	run := func() (float64, error) {
		took, err := timed(ctx, "1", env, b.binary, "run", "--image", image, "--", "/bin/sh", "-c", "echo 1")
		if err != nil {
			return 0, fmt.Errorf("glovebox run --image: %w", err)
		}
		return took, nil
	}
	if _, err := run(); err != nil { // prepares files that later runs use
		return err
	}
	first := &peer{id: "peer.podman.cold", name: "podman run of the image, 300 MB, first container", once: func(ctx context.Context) (float64, error) {
		return b.peers.runImage(ctx, "oci:"+named, true)
	}}
	again := &peer{id: "peer.podman.warm", name: "podman run of the image, unpacked", once: func(ctx context.Context) (float64, error) {
		return b.peers.runImage(ctx, "oci:"+named, false)
	}}
	defer b.peers.forgetImages(ctx)
	var cold, warm []float64
	beside := alternately(ctx, first)
	for range b.n(5, 2) {
		if _, err := timed(ctx, "", env, b.binary, "image", "rm", image); err != nil {
			return fmt.Errorf("glovebox image rm: %w", err)
		}
		took, err := run()
		if err != nil {
			return err
		}
		cold = append(cold, took)
		beside.take(ctx)
	}
	besideWarm := alternately(ctx, again)
	for range b.n(15, 3) {
		took, err := run()
		if err != nil {
			return err
		}
		warm = append(warm, took)
		besideWarm.take(ctx)
	}
	b.add(
		report.Measured("images.cold", coldName, "ms", cold...).Against(beside.of(first)).
			Noting("%d files, %.0f MB compressed", len(made.files), float64(made.packed.size)/1e6),
		report.Measured("images.warm", warmName, "ms", warm...).Against(besideWarm.of(again)),
		beside.of(first), besideWarm.of(again),
	)
	settings := []string{"GLOVEBOX_IMAGE=" + image, ofImage}
	if err := b.buildTemplates(ctx, "image", nothing, settings...); err != nil {
		return err
	}
	m, err := b.memoryOfBoxes(ctx, b.n(9, 2), "image", "python", "print(1)", append(settings, "GLOVEBOX_PRELOAD="+nothing)...)
	if err != nil {
		return err
	}
	b.add(memoryRows("images.memory", memoryName, m, report.Figure{}, 0)...)
	return nil
}
