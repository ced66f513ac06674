package consent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

const (
	// maxFiles bounds the files of a definition that are listed one by one; one entry
	// stands for the rest. maxFound bounds all of them.
	maxFiles = 64
	maxFound = 1024
	// maxFile and maxTotal bound the bytes that are hashed: of one file, and of all files
	// of a definition.
	maxFile  = 64 << 20
	maxTotal = 256 << 20
	// maxPath is the longest path that can exist.
	maxPath = 4 << 10
)

// A File is a local file that a definition runs, or from which the program gets its
// environment.
type File struct {
	Path string `json:"path"` // absolute; a text such as "(12 more files)" for an entry that stands for several
	// SHA256 is the hash of the content, in hexadecimal; empty if there is no such file.
	// Somebody may create it later. If [File.Hashed] is false, it is another text that
	// describes the file: "unreadable", "directory", "special", or its size and time.
	SHA256 string `json:"sha256,omitempty"`
}

// Hashed reports whether SHA256 is the hash of the content. It is not for files that
// cannot be read, and for files too large to hash, which count by size and time.
func (f File) Hashed() bool {
	b, err := hex.DecodeString(f.SHA256)
	return err == nil && len(b) == sha256.Size
}

// Files returns the local files whose content decides what the definition does, sorted
// by path. They are
//   - the program, if the definition names it by its path or if it is found on PATH in
//     the directory of the definition,
//   - the file of variables,
//   - arguments that are scripts or programs by their name or content,
//   - the first argument of an interpreter, whatever its name, also behind a launcher such
//     as env, or in the text that env -S splits: as it is, with the suffixes that Node.js
//     tries, or the file that it names in package.json or by convention if it is a
//     directory,
//   - the files of a module that Python runs from the working directory,
//   - the package.json and programs of a directory that npx runs, and the program that the
//     package.json of the working directory gives the name of npx's package,
//   - the files of the working directory that a launcher obeys, such as .npmrc or
//     Makefile, and those that it gets with -f or --file.
//
// Files follows symbolic links. It leaves out the system's directories, other programs
// found on PATH, text after flags such as -c, and everything that these files load in
// turn. The resolver expands placeholders; parts that it cannot expand are not considered.
// A directory that is or contains r.Home is not the definition's: programs there are the
// user's.
//
// Files hashes at most 64 MiB of a file and 256 MiB in all. Larger files count by size
// and time of the last change. Of more than 64 files, one entry stands for the rest.
//
// The error means that reading a file failed, that ctx ended, or that the files cannot be
// found out: they are more than 1024, or a package.json is not valid JSON, is larger than
// 1 MiB or names more than 32 programs. A file that the user may not read is no error.
func Files(ctx context.Context, s *mcpjson.Server, r mcpjson.Resolver) ([]File, error) {
	return new(Cache).Files(ctx, s, r)
}

// Files is [Files]. It does not read files again that have not changed since.
func (c *Cache) Files(ctx context.Context, s *mcpjson.Server, r mcpjson.Resolver) ([]File, error) {
	if s.Transport != mcpjson.TransportStdio {
		return nil, nil
	}
	f := finder{program: s.Program(ctx, r), project: s.Dir, found: make(map[string]bool)}
	if rel, err := filepath.Rel(s.Dir, r.Home); err == nil && r.Home != "" && filepath.IsLocal(rel) {
		f.project = ""
	}
	if f.find(); f.err != nil {
		return nil, fmt.Errorf("find the files of mcp server %q: %w", s.Name, f.err)
	}
	paths := make([]string, 0, len(f.found))
	for path := range f.found {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	files := make([]File, len(paths))
	left := int64(maxTotal)
	for i, path := range paths {
		sum, err := c.describe(ctx, path, &left)
		if err != nil {
			return nil, fmt.Errorf("hash a file of mcp server %q: %w", s.Name, err)
		}
		files[i] = File{path, sum}
	}
	if len(files) > maxFiles {
		files = append(files[:maxFiles:maxFiles], joined(files[maxFiles:]))
	}
	return files, nil
}

// joined returns one entry for several files.
func joined(files []File) File {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %q\n", f.Path, f.SHA256)
	}
	return File{fmt.Sprintf("(%d more files)", len(files)), hex.EncodeToString(h.Sum(nil))}
}

type finder struct {
	program mcpjson.Program
	project string
	bases   []string // directories that relative paths may be relative to
	found   map[string]bool
	err     error // the first reason why found is incomplete
}

// configured are the files of the working directory that a launcher obeys: they name a
// registry, code to load, or the command itself.
var configured = map[string][]string{
	"npx": {".npmrc"}, "npm": {".npmrc", "package.json"}, "pnpm": {".npmrc", "package.json"}, "pnpx": {".npmrc"}, "yarn": {".yarnrc", ".yarnrc.yml", "package.json"},
	"bun": {"bunfig.toml", "package.json"}, "bunx": {"bunfig.toml", ".npmrc"}, "uv": {"uv.toml", "pyproject.toml"}, "uvx": {"uv.toml"},
	"deno": {"deno.json", "deno.jsonc", "package.json"}, "make": {"GNUmakefile", "makefile", "Makefile"}, "just": {"justfile"}, "poetry": {"pyproject.toml"},
	"docker compose": composeFiles, "podman compose": composeFiles, "docker-compose": composeFiles, "podman-compose": composeFiles, "cargo": {"Cargo.toml", ".cargo/config.toml"}, "mise": {"mise.toml", ".mise.toml"},
}

var composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"}

// directoryFlags take the directory in which a launcher runs.
var directoryFlags = []string{"--directory", "--project", "--prefix", "--cwd", "--dir", "--chdir", "-C"}

func (f *finder) find() {
	f.program.Argv = splitStrings(f.program.Argv)
	argv, p := f.program.Argv, f.program
	f.bases = []string{p.Dir}
	for i, a := range argv {
		flag, value, ok := strings.Cut(a, "=")
		if !ok && i+1 < len(argv) {
			value = argv[i+1]
		}
		if i > 0 && slices.Contains(directoryFlags, flag) && value != "" && len(f.bases) < maxFiles {
			f.bases = append(f.bases, absolute(p.Dir, value))
		}
	}
	if p.EnvFile != "" {
		f.put(p.EnvFile)
	}
	f.command(argv[0])
	launcher := f.launcher(argv[0])
	searching, wrapped := interprets(argv[0]), wraps(argv[0]) // for the script of the interpreter
	packages := 0                                             // words that may be the package of npx, or one for its -p flag
	for i, a := range argv[1:] {
		if f.err != nil {
			return
		}
		f.argument(a)
		before := launcher
		switch {
		case wrapped && !strings.HasPrefix(a, "-"):
			// After a flag, the word may be its value instead of the program.
			launcher = f.launcher(a)
			searching = interprets(a)
			wrapped = wraps(a) || !searching && strings.HasPrefix(argv[i], "-")
		case searching && !strings.HasPrefix(a, "-") && !slices.Contains(directoryFlags, argv[i]):
			// The value of a flag, a subcommand or another interpreter is not the script.
			found := f.script(a)
			searching = !found || slices.Contains(valueFlags, argv[i]) || slices.Contains(subcommands, a) || interprets(a)
		}
		_, value, ok := strings.Cut(a, "=")
		if ok {
			f.argument(value)
		}
		if _, launches := configured[before]; launches {
			f.named(argv[i], a)
		}
		switch {
		case a == "--run" || strings.HasPrefix(a, "--run="): // node runs a script of package.json
			for _, base := range f.bases {
				f.put(filepath.Join(base, "package.json"))
			}
		case argv[i] == "-m": // python runs the module in the working directory first
			f.module(a)
		case !strings.HasPrefix(a, "-") && (before == "npx" || before == "bunx") && packages < 2:
			packages++
			f.binary(a)
			f.ownBinary(a)
			f.packageIn(a)
		}
	}
}

// launcher adds the files of the working directory that a program obeys if it is a
// launcher. It returns the program's key in configured, or its name.
func (f *finder) launcher(command string) string {
	name := strings.TrimSuffix(filepath.Base(command), ".exe")
	if (name == "docker" || name == "podman") && slices.Contains(f.program.Argv, "compose") {
		name += " compose"
	}
	for _, base := range f.bases {
		for _, file := range configured[name] {
			f.put(filepath.Join(base, filepath.FromSlash(file)))
		}
	}
	return name
}

// wrappers run the program that follows their flags, numbers and variables.
var wrappers = []string{"env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "time", "xvfb-run", "cross-env", "dotenv"}

// wraps reports whether a word stands before the program that matters.
func wraps(word string) bool {
	return slices.Contains(wrappers, filepath.Base(word)) || strings.Contains(word, "=") || strings.Trim(word, "0123456789.smhd") == ""
}

// fileFlags take a file that a launcher obeys.
var fileFlags = []string{"-f", "--file", "--makefile", "--justfile", "--env-file"}

// named adds the file of a launcher's flag, given a word and the one before it.
func (f *finder) named(before, word string) {
	flag, value, ok := strings.Cut(word, "=")
	switch {
	case ok && slices.Contains(fileFlags, flag):
	case slices.Contains(fileFlags, before):
		value = word
	case strings.HasPrefix(word, "-f") && !strings.HasPrefix(word, "--"):
		value = word[len("-f"):]
	default:
		return
	}
	if value == "" || value == "-" || len(value) > maxPath {
		return
	}
	for _, base := range f.bases {
		f.put(absolute(base, value))
	}
}

// command adds the program, unless it belongs to the system.
func (f *finder) command(command string) {
	if command == "" {
		return
	}
	if filepath.Base(command) != command {
		f.add(absolute(f.program.Dir, command))
		return
	}
	if path, err := exec.LookPath(command); err == nil && f.project != "" {
		rel, err := filepath.Rel(f.project, path)
		if err != nil || !filepath.IsLocal(rel) {
			return
		}
		// The same program may be found under several names.
		// A link of the project to one of the system counts itself: it may be changed.
		if real, err := filepath.EvalSymlinks(path); err == nil && !ofSystem(real) {
			path = real
		}
		f.add(path)
	}
}

// argument adds an argument if it is a script or program. A script need not exist.
func (f *finder) argument(a string) {
	a = strings.TrimPrefix(a, "file://")
	if a == "" || a[0] == '-' || len(a) > maxPath || strings.ContainsAny(a, "\x00\n") || strings.Contains(a, "://") {
		return
	}
	for _, base := range f.bases {
		path := absolute(base, a)
		switch info, err := os.Stat(path); {
		case err != nil:
			if isScript(a) {
				f.add(path)
			}
		case info.Mode().IsRegular() && (isScript(a) || isProgram(path, info)):
			f.add(path)
		}
	}
}

// script adds the script of an interpreter, whatever its name and content, or the file
// that the interpreter runs of a directory. It reports whether there is a file or
// directory of that name.
func (f *finder) script(a string) (found bool) {
	if len(a) > maxPath {
		return false
	}
	for _, base := range f.bases {
		path := absolute(base, a)
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().IsRegular():
			f.add(path)
		case err == nil && info.IsDir():
			f.directory(path)
		default:
			// Node.js tries suffixes. A file without one would run instead of them.
			for _, suffix := range []string{".js", ".json", ".node", ".mjs", ".cjs", ".ts"} {
				if info, err := os.Stat(path + suffix); err == nil && info.Mode().IsRegular() {
					f.add(path)
					f.add(path + suffix)
					found = true
				}
			}
			continue
		}
		found = true
	}
	return found
}

// directory adds the files that an interpreter may run of a directory.
func (f *finder) directory(dir string) {
	for _, name := range []string{"__main__.py", "index.js", "index.mjs", "index.ts"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			f.add(filepath.Join(dir, name))
		}
	}
	f.packageOf(dir)
}

// valueFlags are flags of some interpreters whose value is the next argument.
var valueFlags = []string{
	"-r", "--require", "--import", "--loader", "--experimental-loader", "--preload", "--env-file", "--conditions", "--config", "--import-map",
	"-W", "-X", "-I", "-d", "--with", "--with-requirements", "--with-editable", "--python", "-p", "--package", "-cp", "-classpath",
}

// subcommands stand before the script.
var subcommands = []string{"run", "x", "exec", "watch"}

var interpreters = []string{"node", "nodejs", "bun", "deno", "tsx", "ts-node", "uv", "python", "pypy", "ruby", "perl", "php", "lua", "julia", "rscript", "sh", "bash", "dash", "zsh", "ksh", "fish", "osascript", "tclsh", "awk", "java"}

// interprets reports whether a command is an interpreter of any version.
func interprets(command string) bool { return slices.Contains(interpreters, baseName(command)) }

// baseName returns the name of a program without directory, suffix and version.
func baseName(command string) string {
	return strings.TrimRight(strings.TrimSuffix(strings.ToLower(filepath.Base(command)), ".exe"), "0123456789.")
}

// module adds the files in which a module of Python may be.
func (f *finder) module(name string) {
	path := filepath.FromSlash(strings.ReplaceAll(name, ".", "/"))
	if path == "" || len(path) > maxPath || !filepath.IsLocal(path) {
		return
	}
	for _, base := range f.bases {
		f.add(filepath.Join(base, path+".py"))
		f.add(filepath.Join(base, path, "__main__.py"))
		f.add(filepath.Join(base, path, "__init__.py"))
	}
}

// binary adds the program of the working directory that npx prefers to a package.
func (f *finder) binary(name string) {
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		name = name[:at]
	}
	if name = filepath.Base(name); name == "." || len(name) > maxPath {
		return
	}
	for _, base := range f.bases {
		f.add(filepath.Join(base, "node_modules", ".bin", name))
	}
}

// systemDirs contain the programs of the system, which its package manager replaces.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/snap", "/nix", "/gnu", "/System", "/Library", "/Applications"}

func ofSystem(path string) bool {
	return slices.ContainsFunc(systemDirs, func(dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	})
}

func (f *finder) add(path string) {
	if !ofSystem(path) {
		f.put(path)
	}
}

// put adds a file, also of the system.
func (f *finder) put(path string) {
	switch {
	case f.found[path]:
	case len(f.found) >= maxFound:
		f.fail(fmt.Errorf("more than %d files decide what it does: they cannot be compared; put them behind one script", maxFound))
	default:
		f.found[path] = true
	}
}

// fail records that files are missing.
func (f *finder) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func absolute(base, path string) string {
	if filepath.IsAbs(path) || base == "" {
		return filepath.Clean(path)
	}
	return filepath.Join(base, filepath.FromSlash(path))
}

var scripts = []string{
	".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".py", ".pyw", ".pyc", ".pyz", ".rb", ".pl", ".pm", ".php", ".lua", ".r", ".jl",
	".sh", ".bash", ".zsh", ".fish", ".ps1", ".bat", ".cmd", ".exe", ".jar", ".class", ".wasm", ".node", ".so", ".dylib", ".dll", ".tcl", ".awk", ".groovy", ".kts", ".scpt", ".env",
}

// isScript reports whether a name is that of a script or program.
func isScript(name string) bool {
	return slices.Contains(scripts, strings.ToLower(filepath.Ext(name))) || filepath.Base(name) == ".env"
}

// isProgram reports whether a file begins as a program or script does. Files that the
// user may run but not read are programs; any other file may be marked as executable.
func isProgram(path string, info fs.FileInfo) bool {
	f, err := openFile(path)
	if err != nil {
		return errors.Is(err, fs.ErrPermission) && info.Mode()&0o111 != 0
	}
	defer f.Close()
	begin := make([]byte, 4)
	n, _ := io.ReadFull(f, begin) // a shorter file is no program
	text := string(begin[:n])
	return strings.HasPrefix(text, "#!") || strings.HasPrefix(text, "MZ") || slices.Contains([]string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"}, text)
}

func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
