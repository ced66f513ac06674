package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// openContainerImage opens an image by its name, as --image takes it. An image of a
// registry or archive is pulled if it was not before.
func openContainerImage(ctx context.Context, cfg *config.Config, name string, progress func(string)) (*image.Image, error) {
	ref, err := oci.ParseRef(name)
	if err == nil && ref.Kind == oci.KindDirectory {
		img, err := image.Directory(ref.Path)
		return img, explainImage(err)
	}
	if err != nil {
		return nil, explainImage(err)
	}
	store, err := oci.Open(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	img, err := store.Get(ctx, ref, func(step string) {
		if progress != nil {
			progress("image " + name + ": " + step)
		}
	})
	return img, explainImage(err)
}

// runsCommandsOnly reports whether the image of the settings has no interpreter, as far as that
// is known before boxes can be made: false for an image that was not pulled yet.
func runsCommandsOnly(cfg *config.Config) bool {
	ref, err := oci.ParseRef(cfg.Image)
	if err != nil {
		return false // opening it returns the error
	}
	var img *image.Image
	if ref.Kind == oci.KindDirectory {
		img, err = image.Directory(ref.Path)
	} else if store, openErr := oci.Open(cfg.StateDir); openErr == nil {
		img, err = store.Known(ref)
	}
	return err == nil && img != nil && len(img.Interpreters) == 0
}

// explainImage adds the remedy to an error of opening or pulling an image.
func explainImage(err error) error {
	switch {
	case err == nil:
		return nil
	case hostdisk.IsFull(err):
		return withHint(err, "%s", fullDisk(err))
	case errors.Is(err, engine.ErrExhausted):
		return withHint(err, "free disk space in the state directory (glovebox image rm), or choose another one with --state-dir")
	case errors.Is(err, oci.ErrHostile):
		return withHint(err, "the image is damaged or unusual; pull it with another tool and try its archive (docker save), or choose another image")
	}
	if registry, ok := errors.AsType[*oci.RegistryError](err); ok {
		return explainRegistry(err, registry)
	}
	return withHint(err, "--image and GLOVEBOX_IMAGE name an image of a registry (python:3.13-slim), a directory, or an archive of docker save; see docs/images.md")
}

// explainRegistry adds the remedy to an error of a registry, if there is one.
func explainRegistry(err error, at *oci.RegistryError) error {
	host := printable(at.Registry)
	switch at.Problem {
	case oci.Denied:
		return withHint(err, "check the name of the image; for a private one, type: docker login %s", host)
	case oci.Missing:
		return withHint(err, "check the name and the tag: %s has no such image", host)
	case oci.Unreachable:
		return withHint(err, "check the name %s, and that this machine reaches it, with HTTPS_PROXY if it needs a proxy", host)
	}
	return err
}

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Pull, list and remove the container images of boxes",
		Long: `An image is the root file system of boxes, for the commands with --image. It is pulled
once, verified, and stored as one file in the state directory, which all boxes share
read-only. Commands with --image pull an image that is missing. See docs/images.md.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.imagePullCommand(), a.imageListCommand(), a.imageRemoveCommand())
	return cmd
}

// withImages prepares the state directory, opens its images and calls f.
func (a *app) withImages(cmd *cobra.Command, f func(context.Context, *oci.Store, *config.Config) error) error {
	cfg, _, err := config.Load(cmd.Flags(), a.lookup)
	if err != nil {
		return err
	}
	if err := prepareState(cfg.StateDir); err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context(), func() {}, nil)
	defer stop()
	store, err := oci.Open(cfg.StateDir)
	if err != nil {
		return err
	}
	return f(ctx, store, cfg)
}

func (a *app) imagePullCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images, and look again what their tags mean",
		Long: `Pull looks up each IMAGE and stores it, unless the state directory has the same
content already. An IMAGE is one of:
  python:3.13-slim             an image of a registry, also with @sha256:DIGEST
  oci:DIR[:TAG]                a directory or archive in the OCI layout
  docker-archive:FILE[:TAG]    what docker save and podman save write
Registries need HTTPS, except those on this machine. Credentials are those of docker
login and podman login. Boxes and templates made later use the new content.`,
		Example: `  glovebox image pull python:3.13-slim
  podman save my/app >app.tar && glovebox image pull ./app.tar`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{err: errors.New("name the images to pull"), cmd: cmd.CommandPath()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withImages(cmd, func(ctx context.Context, s *oci.Store, cfg *config.Config) error {
				for _, arg := range args {
					if err := a.pullImage(ctx, s, cfg, arg); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	bind(cmd, "host", "log")
	return cmd
}

func (a *app) pullImage(ctx context.Context, s *oci.Store, cfg *config.Config, text string) error {
	ref, err := oci.ParseRef(text)
	if err != nil {
		return explainImage(err)
	}
	if ref.Kind == oci.KindDirectory {
		return withHint(fmt.Errorf("%s is a directory with a root file system, which needs no pull", ref.Path), "use it as it is: --image %s", printable(text))
	}
	progress := a.progress(cfg)
	info, err := s.Pull(ctx, ref, func(step string) {
		if progress != nil {
			progress("image " + text + ": " + step)
		}
	})
	if err != nil {
		return explainImage(err)
	}
	for _, note := range info.Notes {
		a.note("glovebox: note: %s", printable(note))
	}
	_, err = fmt.Fprintf(a.Out, "%s %s\n", info.Key, printable(info.Ref))
	return err
}

func (a *app) imageListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the images",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return &usageError{err: fmt.Errorf("--output must be one of: text, json, got %q", output), cmd: cmd.CommandPath()}
			}
			return a.withImages(cmd, func(_ context.Context, s *oci.Store, _ *config.Config) error {
				list, err := s.List()
				if err != nil {
					return err
				}
				return a.printImages(list, output == "json")
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`text|json` output format")
	help.Group(cmd.Flags(), "List", "output")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "host", "log")
	return cmd
}

func (a *app) printImages(list []oci.Info, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(list)
	}
	if len(list) == 0 {
		a.note("glovebox: no images; glovebox image pull pulls one")
		return nil
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tIMAGE\tRUNS\tMIB\tPULLED")
	for _, i := range list {
		var runs []string
		for _, p := range i.Interpreters {
			runs = append(runs, strings.TrimSpace(p.Language+" "+p.Version))
		}
		if len(runs) == 0 {
			runs = []string{"commands only"}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", i.Key, printable(i.Ref), printable(strings.Join(runs, ", ")), i.Bytes>>20, i.Pulled.Local().Format("2006-01-02 15:04"))
	}
	return w.Flush()
}

func (a *app) imageRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm IMAGE|KEY...",
		Short: "Remove images",
		Long: `Rm removes images by the name or the key that ls shows. Running boxes go on.
Hibernated boxes of a removed image cannot wake until it is pulled again. An image that a
template was built from stays until the template is removed.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{err: errors.New("name the images to remove; glovebox image ls lists them"), cmd: cmd.CommandPath()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withImages(cmd, func(ctx context.Context, s *oci.Store, cfg *config.Config) error {
				for _, arg := range args {
					name := arg
					if ref, err := oci.ParseRef(arg); err == nil {
						name = ref.String()
					}
					if err := imageUnused(cfg, s, name, arg); err != nil {
						return err
					}
					gone, err := s.Remove(ctx, name)
					if errors.Is(err, oci.ErrNotFound) {
						gone, err = s.Remove(ctx, arg)
					}
					if err != nil {
						return withHint(err, "glovebox image ls lists the images")
					}
					for _, info := range gone {
						a.note("glovebox: removed %s (%s)", printable(info.Ref), info.Key)
					}
				}
				return nil
			})
		},
	}
	bind(cmd, "host", "log")
	return cmd
}
