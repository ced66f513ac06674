package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The image has the files of /etc that programs need and no secrets, through links
// neither.
func TestEtc_HasWhatProgramsNeed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	etc := filepath.Join(dir, "etc")
	write := func(name string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(etc, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	needed := []string{
		"java-17-openjdk/security/java.security", "java-17-openjdk/jvm-amd64.cfg", "java-17-openjdk/security/policy/unlimited/default_local.policy",
		"perl/Net/libnet.cfg", "R/Renviron", "ImageMagick-6/policy.xml", "mime.types", "magic", "matplotlibrc", "python3.11/sitecustomize.py",
		"ssl/openssl.cnf", "dictionaries-common/words", "locale.alias", "xml/catalog", "OpenCL/vendors/pocl.icd",
	}
	for _, name := range needed {
		write(name, 0o644)
	}
	secrets := []string{
		"shadow", "gshadow", "passwd-", "sudoers", "sudoers.d/admin", "ssh/ssh_host_ed25519_key", "ssh/sshd_config", "ssl/private/server.key",
		"machine-id", "fstab", "crontab", "environment", "npmrc", "pip.conf", "maven/settings.xml", "R/Renviron.site", "odbc.ini",
		"glovebox/tokens.toml", "mysql/debian.cnf", "NetworkManager/system-connections/home", "krb5.keytab", "wgetrc", "gitconfig", "netrc",
	}
	for _, name := range secrets {
		write(name, 0o644) // as readable as an inattentive administrator left it
	}
	// In a directory that is shown: what not everybody may read, and ways out.
	write("java-17-openjdk/management/jmxremote.password", 0o640)
	for link, to := range map[string]string{
		"java-17-openjdk/security/out": "../../shadow", "java-17-openjdk/far": "/etc/hostname", "perl/dir": "../ssh", "magic.mime": "sudoers",
		"java-17-openjdk/loop": ".", "java-17-openjdk/near": "jvm-amd64.cfg", "rpc": "gone",
	} {
		if err := os.Symlink(to, filepath.Join(etc, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := newSkeleton()
	s.addEtc(etc)
	for _, name := range append(needed, "java-17-openjdk/near") {
		if got := s.files["/etc/"+name]; !strings.HasPrefix(got, "content of ") {
			t.Errorf("%s: got %q", name, got)
		}
		if _, ok := s.dirs[filepath.Dir("/etc/"+name)]; !ok {
			t.Errorf("%s has no directory", name)
		}
		delete(s.files, "/etc/"+name)
	}
	for name := range s.files {
		t.Errorf("%s is there", name)
	}
}

// However large /etc is, little of it is copied.
func TestEtc_IsBounded(t *testing.T) {
	etc := t.TempDir()
	dir := filepath.Join(etc, "java-17")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{"huge": maxCopy + 1, "a": maxCopy, "b": maxCopy, "c": maxCopy, "d": maxCopy, "e": maxCopy} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Fatal(err)
		}
	}
	s := newSkeleton()
	s.addEtc(etc)
	if len(s.files) != maxCopied/maxCopy || s.files["/etc/java-17/huge"] != "" {
		t.Errorf("got %d files, want %d", len(s.files), maxCopied/maxCopy)
	}
}

// The image has the files in /etc that programs below /usr of this machine need, for
// the packages that are known to need some.
func TestEtc_OfThisMachine(t *testing.T) {
	s := newSkeleton()
	s.addSystem()
	n := 0
	for _, pattern := range []string{"/usr/lib/jvm/*/conf/*", "/usr/lib/jvm/*/conf/security/*", "/usr/lib/jvm/*/lib/*", "/usr/lib/R/etc/*", "/usr/lib/python3*/*", "/usr/share/locale/*"} {
		links, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			to, err := os.Readlink(link)
			if err != nil || !strings.HasPrefix(to, "/etc/") || strings.HasSuffix(to, ".site") || !exists(to) {
				continue
			}
			n++
			if info, err := os.Stat(to); err != nil || info.IsDir() || info.Mode().Perm()&0o004 == 0 {
				continue
			}
			if _, ok := s.files[to]; !ok && !isWithin(to, "/etc/ssl/certs") {
				t.Errorf("%s leads to %s, which is not in the image", link, to)
			}
		}
	}
	t.Logf("%d links", n)
}
