package image

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// maxCopy bounds a file of /etc that is copied.
	maxCopy = 4 << 20
	// maxCopies and maxCopied bound all files of /etc that are copied, which a
	// process reads at its start: a desktop with every package below has some 400
	// files of 3 MiB.
	maxCopies = 2000
	maxCopied = 16 << 20
)

// made are the files of /etc that are made up: a guest knows its own accounts and
// nothing of the host's.
var made = map[string]string{
	"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
	"group":  "root:x:0:\ntty:x:5:\nusers:x:100:\nnogroup:x:65534:\nuser:x:1000:\n",
	// The host name is machine.Hostname. An address of its own, as on Debian, keeps
	// the name of 127.0.0.1 localhost.
	"hosts":    "127.0.0.1 localhost\n127.0.1.1 glovebox\n::1 localhost\n",
	"hostname": "glovebox\n",
	// The agent's name server always answers, if only that there is no such name, and
	// waits up to 8 s for the host. A resolver would call silence temporary, and
	// programs would try again.
	"resolv.conf":   "nameserver 127.77.0.1\noptions timeout:10 attempts:2\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"shells":        "/bin/sh\n/bin/bash\n",
}

// NetworkFiles returns the files of /etc, by name, that tell a box its host name and
// how to resolve names.
func NetworkFiles() map[string]string {
	files := make(map[string]string)
	for _, name := range []string{"hosts", "hostname", "resolv.conf", "nsswitch.conf"} {
		files[name] = made[name]
	}
	return files
}

// copied are files of the host's /etc that programs in /usr need and that say nothing
// about the host or its users. Globs are allowed, and what is below a directory
// belongs to it. Nothing is here in which people keep passwords: not the settings of
// npm, pip, Maven, R's Renviron.site, ODBC's data sources, nor of any server.
var copied = []string{
	// Linker, types of files, numbers of protocols, time zone, terminals.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*.conf", "mime.types", "magic", "magic.mime", "protocols", "services", "rpc",
	"os-release", "debian_version", "localtime", "timezone", "locale.alias", "inputrc",
	// Cryptography; keys are elsewhere.
	"ssl/openssl.cnf", "crypto-policies/back-ends/*",
	// Languages, which do not start without.
	"python3/*", "python3.*/*", "java", "java-*", "perl", "R/Renviron", "R/Makeconf", "R/ldpaths", "R/javaconf", "R/repositories",
	"octave.conf", "julia", "mono", "dotnet",
	// Plots, documents, words.
	"matplotlibrc", "ImageMagick-*", "ghostscript", "groff", "libreoffice", "papersize", "texmf", "xml", "sgml", "dictionaries-common",
	// Which drivers there are.
	"OpenCL", "vulkan", "glvnd", "odbcinst.ini",
}

// shown are directories outside /usr that programs need.
var shown = []string{
	"/etc/alternatives", "/etc/fonts", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
	"/etc/ca-certificates/extracted", "/etc/terminfo", "/var/cache/fontconfig",
}

// addEtc copies to /etc what programs need of the host's, which is at dir: small
// files that everybody may read. Others, and what cannot be read, are left out:
// programs do without.
func (s *skeleton) addEtc(dir string) {
	left, bytes := maxCopies, int64(maxCopied)
	add := func(file string) {
		info, err := os.Stat(file)
		if err != nil || left == 0 || info.Size() > min(maxCopy, bytes) || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
			return
		}
		if real, err := filepath.EvalSymlinks(file); err != nil || !mayCopy(real, dir) {
			return
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return
		}
		left, bytes = left-1, bytes-int64(len(b))
		to := "/etc" + strings.TrimPrefix(file, dir)
		s.addParents(to)
		s.files[to] = string(b)
	}
	for _, pattern := range copied {
		matches, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue // not possible: the patterns are constant
		}
		for _, match := range matches {
			// Links to directories are not followed, so that it ends.
			filepath.WalkDir(match, func(file string, entry fs.DirEntry, err error) error {
				switch {
				case err != nil && entry != nil && entry.IsDir():
					return fs.SkipDir
				case err == nil && !entry.IsDir():
					add(file)
				}
				return nil
			})
		}
	}
}

// mayCopy reports whether a file that something in the etc directory leads to is one
// that programs need, too, or a program's own.
func mayCopy(real, etc string) bool {
	if isWithin(real, "/usr") || isWithin(real, "/var/lib/dictionaries-common") {
		return true
	}
	if dir, err := filepath.EvalSymlinks(etc); err == nil {
		etc = dir
	}
	rel, err := filepath.Rel(etc, real)
	if err != nil {
		return false
	}
	for _, pattern := range append(copied, "alternatives") {
		for at := rel; at != "."; at = filepath.Dir(at) {
			if ok, err := filepath.Match(pattern, at); ok && err == nil {
				return true
			}
		}
	}
	return false
}
