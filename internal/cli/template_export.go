package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/recipe"
	"github.com/glovebox-dev/glovebox/internal/regular"
)

// An exported template is a tar archive: first template.json, an exported, then the files of
// its snapshot below data/, in the order of that list.
const (
	exportFormat = 1
	exportHeader = "template.json"
	exportData   = "data/"
	// maxExportHeader, maxExportFiles and maxExportBytes bound what import accepts: a
	// snapshot has a dozen files, and the memory and disk of the largest box.
	maxExportHeader = 4 << 20
	maxExportFiles  = 1000
	maxExportBytes  = 16 << 30
)

// exported describes an exported template.
type exported struct {
	Format      int                `json:"format"`
	Name        string             `json:"name"`
	Description string             `json:"description,omitempty"`
	Base        string             `json:"base"`
	Flavor      string             `json:"flavor"`
	Limits      snapshot.NetLimits `json:"limits,omitempty"`
	Details     catalog.Details    `json:"details"`
	Files       []exportedFile     `json:"files"`
}

type exportedFile struct {
	Path   string `json:"path"` // with slashes, below data/
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func (a *app) templateExportCommand() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "export NAME FILE",
		Short: "Write a named template to a file",
		Long: `Export writes a template of your own to FILE, a tar archive, or to standard output if
FILE is -. Import reads it on a machine with the same processor, interpreters and
version of Glovebox. The file contains the memory and files of a box. Anyone who
can read the file can read those.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			return a.withCatalog(cmd.Context(), cfg, func(ctx context.Context, _ *host, c *catalog.Catalog) error {
				t, err := findNamed(c, owner, args[0])
				if err != nil {
					return err
				}
				if args[1] == "-" {
					return exportTemplate(ctx, c, t, a.Out)
				}
				_, missing := os.Lstat(args[1])
				if err := replaceMode(args[1], 0o600, func(w io.Writer) error { return exportTemplate(ctx, c, t, w) }); err != nil {
					return err
				}
				if missing == nil {
					a.note("glovebox: %s: replaces the file that was there", printable(args[1]))
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&owner, "owner", "", "`owner` of the template [you]")
	help.Group(cmd.Flags(), "Export", "owner")
	bind(cmd, "host", "log")
	return cmd
}

// exportTemplate writes a template to w.
func exportTemplate(ctx context.Context, c *catalog.Catalog, t catalog.Template, w io.Writer) error {
	dir, release, err := c.Read(t.ID)
	if err != nil {
		return err
	}
	defer release()
	e := exported{Format: exportFormat, Name: t.Name, Description: t.Description, Base: t.Base, Flavor: t.Flavor, Limits: t.Limits}
	if e.Details, err = c.Details(t.ID); err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil || entry.IsDir() || entry.Name() == catalog.DetailsName && filepath.Dir(path) == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := exportedFile{Path: filepath.ToSlash(rel)}
		f.Size, f.SHA256, err = sumOf(path)
		e.Files = append(e.Files, f)
		return err
	})
	if err != nil {
		return fmt.Errorf("export template %q: %w", t.Name, err)
	}
	header, err := json.MarshalIndent(e, "", "\t")
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := writeTar(tw, exportHeader, int64(len(header)), bytes.NewReader(header)); err != nil {
		return err
	}
	for _, f := range e.Files {
		in, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return err
		}
		err = writeTar(tw, exportData+f.Path, f.Size, in)
		if err = errors.Join(err, in.Close(), context.Cause(ctx)); err != nil {
			return fmt.Errorf("export template %q: %w", t.Name, err)
		}
	}
	return tw.Close()
}

func writeTar(tw *tar.Writer, name string, size int64, r io.Reader) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(tw, r)
	return err
}

func sumOf(path string) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return n, hex.EncodeToString(h.Sum(nil)), err
}

func (a *app) templateImportCommand() *cobra.Command {
	var owner, name string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read a template that export has written",
		Long: `Import reads a template from FILE, or from standard input if FILE is -. It refuses a
file that is damaged, or whose box this machine cannot restore. Import only files of
people whom you trust as much as the authors of a program that you run: the file is the
memory of a whole machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err == nil && name != "" {
				err = recipe.CheckName(name)
			}
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			return a.withCatalog(cmd.Context(), cfg, func(ctx context.Context, h *host, c *catalog.Catalog) error {
				in := a.In
				if args[0] != "-" {
					f, err := regular.Open(args[0])
					if err != nil {
						return err
					}
					defer f.Close()
					in = f
				}
				before, err := c.All()
				if err != nil {
					return err
				}
				t, err := importTemplate(ctx, cfg, h, c, in, name, owner)
				if err != nil {
					return fmt.Errorf("import %q: %w", args[0], err)
				}
				a.note("glovebox: template %s: imported, %d MiB", t.Name, t.Bytes>>20)
				a.noteReplaced(before, t.Name, t.Owner)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&owner, "owner", "", "`owner` of the template, or * for everyone [you]")
	cmd.Flags().StringVar(&name, "name", "", "`name` of the template [that in the file]")
	help.Group(cmd.Flags(), "Import", "owner", "name")
	bind(cmd, "volumes", "host", "log")
	return cmd
}

// importTemplate reads an exported template from r and adds it to the catalog.
func importTemplate(ctx context.Context, cfg *config.Config, h *host, c *catalog.Catalog, r io.Reader, name, owner string) (catalog.Template, error) {
	tr := tar.NewReader(r)
	e, err := readExported(tr)
	if err != nil {
		return catalog.Template{}, err
	}
	if name != "" {
		e.Name = name
	}
	t := catalog.Template{Name: e.Name, Owner: owner, Description: e.Description, Base: e.Base, Flavor: e.Flavor, Limits: e.Limits.ForTemplate()}
	size := int64(0)
	for _, f := range e.Files {
		size += f.Size
	}
	return c.Put(ctx, t, e.Details, size, func(ctx context.Context, dir string) error {
		if err := extractExported(ctx, tr, e, dir); err != nil {
			return err
		}
		maker, err := h.makerFor(ctx, cfg, &e.Details)
		if err != nil {
			return err
		}
		if err := maker.CheckSnapshot(ctx, box.Flavor(e.Flavor).Limits(), dir); err != nil {
			return withHint(fmt.Errorf("this machine cannot restore its box: %w", err), "build it here from its recipe")
		}
		return nil
	})
}

// readExported reads and checks the description of an exported template.
func readExported(tr *tar.Reader) (*exported, error) {
	h, err := tr.Next()
	if err != nil || h.Name != exportHeader || h.Typeflag != tar.TypeReg {
		return nil, withHint(errors.New("not an exported template"), "glovebox template export NAME FILE writes one")
	}
	b, err := io.ReadAll(io.LimitReader(tr, maxExportHeader+1))
	if err != nil {
		return nil, incomplete(exportHeader, err)
	}
	e := new(exported)
	if len(b) > maxExportHeader {
		return nil, fmt.Errorf("%s is larger than %d bytes", exportHeader, maxExportHeader)
	}
	if err := json.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("%s: %w", exportHeader, err)
	}
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", exportHeader, err)
	}
	return e, nil
}

// check validates a description that may come from anybody.
func (e *exported) check() error {
	if e.Format != exportFormat {
		return fmt.Errorf("format %d, this version reads %d", e.Format, exportFormat)
	}
	if err := recipe.CheckName(e.Name); err != nil {
		return err
	}
	r := recipe.Recipe{Description: e.Description, Flavor: e.Flavor}
	if err := r.Check(); err != nil {
		return err
	}
	if base := box.Interpreter(e.Base); base != box.InterpreterPython && base != box.InterpreterNode || e.Flavor == "" {
		return fmt.Errorf("base %.40q and flavor %.40q are not known", e.Base, e.Flavor)
	}
	if err := e.Limits.Check(); err != nil {
		return err
	}
	if len(e.Files) == 0 || len(e.Files) > maxExportFiles {
		return fmt.Errorf("%d files, must be 1 to %d", len(e.Files), maxExportFiles)
	}
	left := int64(maxExportBytes)
	for _, f := range e.Files {
		if left -= max(f.Size, 0); left < 0 || f.Size < 0 {
			return fmt.Errorf("its files have more than %d bytes, or less than none", int64(maxExportBytes))
		}
		if !fs.ValidPath(f.Path) || f.Path == "." || f.Path == catalog.DetailsName {
			return fmt.Errorf("invalid file name %.80q", f.Path)
		}
	}
	return nil
}

// extractExported writes the files of an exported template to dir, and checks them.
func extractExported(ctx context.Context, tr *tar.Reader, e *exported, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, want := range e.Files {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h, err := tr.Next()
		if err != nil {
			return incomplete(want.Path, err)
		}
		if h.Name != exportData+want.Path || h.Typeflag != tar.TypeReg || h.Size != want.Size {
			return fmt.Errorf("%.80q is not the file %q that %s announces", h.Name, want.Path, exportHeader)
		}
		if err := extractFile(root, tr, want); err != nil {
			return err
		}
	}
	return nil
}

func extractFile(root *os.Root, r io.Reader, want exportedFile) error {
	name := filepath.FromSlash(want.Path)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return incomplete(want.Path, errors.Join(err, f.Close()))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if n != want.Size || hex.EncodeToString(h.Sum(nil)) != want.SHA256 {
		return fmt.Errorf("%q is damaged", want.Path)
	}
	return nil
}

// incomplete is the error of an exported template that ends, or is no archive any more, where
// the file of that name should be.
func incomplete(name string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("it ends before or within %q", name)
	} else {
		err = fmt.Errorf("it is damaged before or within %q: %w", name, err)
	}
	return withHint(err, "copy it again, and compare its size and checksum with those of the original")
}
