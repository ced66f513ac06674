//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func hostDataClass() class {
	return class{
		name:  "host-data",
		about: "Code in a box looks for data, processes, sockets and networks of the host.",
		attacks: []Attack{
			{Name: "secret-file", Claim: "a file of the host outside the image cannot be read", run: script("secret_file", shape{})},
			{Name: "secret-file-as-agent", Claim: "a compromised agent cannot read a file of the host either", run: script("secret_file", shape{asAgent: true})},
			{Name: "environment", Claim: "environment and arguments of host processes are invisible", run: script("environment", shape{})},
			{Name: "processes", Claim: "processes of the host are not in /proc", run: script("host_processes", shape{})},
			{Name: "signals", Claim: "processes of the host cannot be signalled", run: script("signal_host", shape{})},
			{Name: "kernel-files", Claim: "kernel memory, symbols, tracing and firmware are not readable", run: script("kernel_files", shape{})},
			{Name: "kernel-log", Claim: "the host's kernel log is not readable", run: script("kernel_log", shape{asAgent: true})},
			{Name: "hardware", Claim: "serial numbers and devices of the host are invisible", run: compareWithHost("hardware")},
			{Name: "kernel-identity", Claim: "kernel version, boot id, command line and host name are not the host's", run: compareWithHost("kernel_identity")},
			{Name: "home-directories", Claim: "the host's home, log and service directories are not visible", run: compareListings},
			{Name: "credentials", Claim: "password hashes, keys and tokens of the host are not readable", run: script("credentials", shape{asAgent: true})},
			{Name: "loopback", Claim: "services on the host's loopback addresses are unreachable", run: script("host_loopback", shape{})},
			{Name: "unix-sockets", Claim: "the host's Unix sockets are unreachable, by path and by abstract name", run: script("host_unix_sockets", shape{asAgent: true})},
			{Name: "metadata-service", Claim: "cloud metadata services are unreachable in every spelling", run: script("metadata_service", shape{})},
			{Name: "network", Claim: "a box has no network and no interface but its own loopback", run: script("network", shape{})},
			{Name: "name-lookup", Claim: "names are not resolved outside the box, so they carry no data out", run: script("name_lookup", shape{})},
			{Name: "raw-sockets", Claim: "raw, packet, vsock and other unusual sockets are refused", run: script("raw_sockets", shape{})},
			{Name: "mounts", Claim: "the list of mounts names no file system or path of the host", run: script("volumes_of_others", shape{})},
			{Name: "write-everywhere", Claim: "what user code writes never reaches the host", run: script("write_everywhere", shape{})},
			{Name: "write-everywhere-as-agent", Claim: "what a compromised agent writes never reaches the host", run: script("write_everywhere", shape{asAgent: true})},
			{Name: "touch-programs", Claim: "the host's programs cannot be changed through the box", run: touchPrograms},
		},
	}
}

// values runs a function of the class's script and returns what it reported by name.
func (t *trial) values(ctx context.Context, function string, s shape) (map[string]string, error) {
	c, err := t.boot(ctx, s)
	if err != nil {
		return nil, err
	}
	e, err := c.run(ctx, call{function: function})
	if err != nil {
		return nil, err
	}
	return e.values, c.judge(e, false)
}

// compareWithHost compares the files that a script reads with those of the host.
func compareWithHost(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		got, err := t.values(ctx, function, shape{})
		if err != nil {
			return err
		}
		for name, inside := range got {
			_, path, _ := strings.Cut(name, ".")
			path = "/" + strings.ReplaceAll(path, ".", "/")
			b, err := os.ReadFile(path)
			if host := strings.Join(strings.Fields(string(b)), " "); err == nil && host != "" && !slices.Contains([]string{"localhost", "(none)", "Default string"}, host) {
				t.check(host != inside, "%s is that of the host: %q", path, inside)
			}
		}
		return nil
	}
}

// compareListings compares the directories that a script lists with those of the
// host.
func compareListings(ctx context.Context, t *trial) error {
	got, err := t.values(ctx, "home_directories", shape{})
	if err != nil {
		return err
	}
	for name, encoded := range got {
		name, _, _ = strings.Cut(name, "/") // the part of the listing
		_, path, _ := strings.Cut(name, ".")
		path = "/" + strings.ReplaceAll(path, ".", "/")
		var inside []string
		if err := json.Unmarshal([]byte(encoded), &inside); err != nil {
			return err
		}
		entries, err := os.ReadDir(path)
		if err != nil || len(entries) < 2 {
			continue // nothing to recognize
		}
		for _, e := range entries {
			// The box has a home and a temporary directory of its own.
			if generic := []string{"user", "lock", "tmp", "log", "cache", "lib", "www"}; !slices.Contains(generic, e.Name()) {
				t.check(!slices.Contains(inside, e.Name()), "%s of the host is visible", filepath.Join(path, e.Name()))
			}
		}
	}
	return nil
}

// touchPrograms compares the host's files before and after the attack.
func touchPrograms(ctx context.Context, t *trial) error {
	files := []string{"/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/hosts", "/usr/lib/os-release", t.python()}
	before := map[string]int64{}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			before[f] = info.ModTime().UnixNano()
		}
	}
	_, err := t.values(ctx, "touch_programs", shape{asAgent: true})
	for f, was := range before {
		info, err := os.Stat(f)
		t.check(err == nil && info.ModTime().UnixNano() == was, "%s of the host was changed", f)
	}
	return err
}
