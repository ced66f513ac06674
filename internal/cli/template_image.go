package cli

import (
	"context"
	"encoding/json"
	"fmt"
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
	return b.host.makerWith(b.cfg, img)
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
