package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/glovebox-dev/glovebox"

// pkg is the output of go list for a package.
type pkg struct {
	ImportPath, Name, Doc, Dir         string
	Imports                            []string
	GoFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles                     []string
}

// rel returns the path below the module.
func (p *pkg) rel() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// list returns all packages of the module and their dependencies, as built for Linux.
var list = sync.OnceValues(func() ([]*pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Name,Doc,Dir,Imports,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles", module+"/...")
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(stderr.String())
	}
	var all []*pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := d.Decode(p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func allPackages(t *testing.T) []*pkg {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	return all
}

func ourPackages(t *testing.T) []*pkg {
	t.Helper()
	var ours []*pkg
	for _, p := range allPackages(t) {
		if strings.HasPrefix(p.ImportPath, module+"/") {
			ours = append(ours, p)
		}
	}
	if len(ours) == 0 {
		t.Fatal("the module has no packages")
	}
	return ours
}
