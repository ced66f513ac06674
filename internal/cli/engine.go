package cli

import (
	"fmt"
	"slices"

	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// selectEngine applies the settings of the engine, and refuses those that its boxes cannot
// have.
func selectEngine(cfg *config.Config) error {
	if cfg.Engine == config.EngineAuto {
		return nil
	}
	version, _ := buildVersion()
	peers := cfg.KubePeerAddress
	if cfg.Mode == "stdio" { // other servers cannot reach it
		peers = ""
	}
	err := engines.Select(cfg.Engine, engines.Options{
		Image: cfg.Image, KubeWarm: cfg.KubeWarm, KubePeerAddress: peers, Version: version,
		KubeContext: cfg.KubeContext, KubeNamespace: cfg.KubeNamespace, KubeRuntimeClass: cfg.KubeRuntimeClass, KubeHelperImage: cfg.KubeHelperImage,
	})
	if err != nil {
		return withHint(&config.Error{Text: err.Error()}, "docs/kubernetes.md explains the settings of the engine")
	}
	if engines.NoSnapshots() && slices.Contains(cfg.Toolsets, "snapshots") {
		err := &config.Error{Text: fmt.Sprintf("offer the toolset snapshots: the engine %s has none", cfg.Engine)}
		return withHint(err, "choose other groups with --toolset, such as sessions or contexts")
	}
	if engines.BoxesElsewhere() != nil {
		return checkElsewhere(cfg)
	}
	if cfg.Engine == microsandbox {
		return checkMicroVM(cfg)
	}
	return nil
}

// microsandbox is the engine whose boxes are microVMs.
const microsandbox = "microsandbox"

// checkMicroVM refuses images that boxes of microsandbox cannot have.
func checkMicroVM(cfg *config.Config) error {
	if cfg.Image == "" {
		return nil
	}
	if ref, err := oci.ParseRef(cfg.Image); err != nil || ref.Kind == oci.KindDirectory {
		return nil // opening the image reports the error
	}
	err := &config.Error{Text: fmt.Sprintf("use the image %s: the engine %s boots this machine's own programs, or a directory with a root file system", cfg.Image, microsandbox)}
	return withHint(err, "leave out --image, or unpack the image and name its directory: --image ./rootfs; docs/microsandbox.md lists what the engine lacks")
}

// checkElsewhere refuses settings that need boxes on this machine.
func checkElsewhere(cfg *config.Config) error {
	if len(cfg.Volumes) > 0 {
		err := &config.Error{Text: fmt.Sprintf("share volume %s: boxes of the engine %s run on other machines, which do not have this directory", cfg.Volumes[0].Host, cfg.Engine)}
		return withHint(err, "unset MSB_SHARED_VOLUME_PATH and --volume, or ignore them with --enable-volumes=false; the file tools copy files into a box")
	}
	return nil
}
