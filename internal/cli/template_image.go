package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/recipe"
)

// makerOf returns a new Maker for the machines of the build: with the file system that the
// recipe names.
func (b *recipeBuild) makerOf(ctx context.Context) (*machine.Maker, error) {
	if b.recipe.From == recipe.Toolchain {
		maker := *b.host.maker
		return &maker, nil
	}
	img, err := openContainerImage(ctx, b.cfg, b.recipe.From, func(step string) { b.say("%s", step) })
	if err != nil {
		return nil, fmt.Errorf("from = %q: %w", b.recipe.From, err)
	}
	if err := img.CheckShown(b.cfg.StateDir); err != nil {
		return nil, withHint(fmt.Errorf("from = %q: boxes cannot have this as their file system: %w", b.recipe.From, err), "name a directory with nothing but a root file system")
	}
	return b.host.makerWith(b.cfg, img)
}

// confineFrom returns the image that a recipe of a file in dir names, with an absolute path if it is
// one on this machine, which has to be below dir: the recipe may come from somebody else, and boxes
// show what is there.
func confineFrom(from, dir string) (string, error) {
	if strings.HasPrefix(from, "./") || strings.HasPrefix(from, "../") {
		from = filepath.Join(dir, from)
	} else if kind, rest, ok := strings.Cut(from, ":"); ok && rest != "" && !filepath.IsAbs(rest) &&
		slices.Contains([]oci.Kind{oci.KindLayout, oci.KindArchive, oci.KindDirectory}, oci.Kind(kind)) {
		from = kind + ":" + filepath.Join(dir, rest)
	}
	// An error of what is no valid name here is one of the build.
	ref, err := oci.ParseRef(from)
	if from == recipe.Toolchain || err == nil && ref.Path == "" {
		return from, nil
	}
	path := ref.Path
	if err != nil {
		if path = from; !filepath.IsAbs(path) {
			return from, nil
		}
	}
	within, err := isBelow(path, dir)
	switch {
	case err != nil:
		return "", err
	case !within:
		return "", fmt.Errorf("from: %.80q is outside of the directory of the recipe: copy it there, or give the recipe on the command line, with --from", from)
	}
	return from, nil
}

// isBelow reports whether a path is dir or below it, also through links.
func isBelow(path, dir string) (bool, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) { // using it fails
		real, err = path, nil
	} else if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return false, err
	}
	rel, err := filepath.Rel(dir, real)
	return err == nil && filepath.IsLocal(rel), nil
}

// makerWith returns a Maker with an image other than that of the settings, and notes what
// the image consists of, for servers with other settings.
func (h *host) makerWith(cfg *config.Config, img *image.Image) (*machine.Maker, error) {
	if err := img.Remember(cfg.StateDir); err != nil {
		return nil, err
	}
	maker := h.maker.WithImage(img.Root, programs(img))
	maker.Env = img.Env
	return maker, nil
}

// commandsOnly reports whether the image of the recipe has no interpreter at all.
func (b *recipeBuild) commandsOnly() bool {
	return b.recipe.From != recipe.Toolchain && len(b.maker.Interpreters) == 0
}

// imageOf returns the name of the image that a template was built from, "" for none.
func imageOf(d *catalog.Details) string {
	var r recipe.Recipe
	if d.Recipe == nil || json.Unmarshal(d.Recipe, &r) != nil || r.From == recipe.Toolchain {
		return ""
	}
	return r.From
}

// imageUnused returns an error if a template was built from the image of one of names.
func imageUnused(cfg *config.Config, s *oci.Store, names ...string) error {
	images, err := s.List()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(images, func(i oci.Info) bool { return slices.Contains(names, i.Ref) || slices.Contains(names, i.Key) })
	if at < 0 {
		return nil // removing it says so
	}
	for i, other := range images {
		if i != at && other.Key == images[at].Key {
			return nil // the content stays under another name
		}
	}
	c, err := catalog.Open(catalog.Config{Dir: filepath.Join(cfg.StateDir, "catalog")})
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := c.All()
	if err != nil {
		return err
	}
	var users []string
	for _, t := range all {
		if d, err := c.Details(t.ID); err == nil && d.Root == images[at].Key {
			users = append(users, t.Name)
		}
	}
	if len(users) == 0 {
		return nil
	}
	return withHint(fmt.Errorf("remove image %s: the template %s was built from it", images[at].Ref, strings.Join(users, ", ")),
		"remove the template first: glovebox template rm %s", users[0])
}

// makerFor returns what restores a template that was built from an image: with that image,
// if this machine has it, else the host's own.
func (h *host) makerFor(ctx context.Context, cfg *config.Config, d *catalog.Details) (*machine.Maker, error) {
	from := imageOf(d)
	if from == "" || d.Root == h.maker.Root.Key {
		return h.maker, nil
	}
	s, err := oci.Open(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	images, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, info := range images {
		if info.Key != d.Root {
			continue
		}
		ref, err := oci.ParseRef(info.Ref)
		if err != nil {
			return nil, err
		}
		img, err := s.Get(ctx, ref, func(string) {})
		if err != nil {
			return nil, err
		}
		return h.makerWith(cfg, img)
	}
	return nil, withHint(fmt.Errorf("it was built from the image %s, which this machine does not have with the same content", from),
		"type: glovebox image pull %s", printable(from))
}
