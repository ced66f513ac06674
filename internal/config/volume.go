package config

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// parseVolumes parses host:container[:ro] mappings: a JSON array of strings or a
// comma-separated list. The host path ends at the first colon.
func parseVolumes(name, text string) ([]Volume, error) {
	var items []string
	switch {
	case strings.HasPrefix(text, "{"):
		return nil, invalid(`%s must not be a JSON object; write a JSON array such as ["/data/in:/shared/input", "/data/out:/shared/output"]`, name)
	case strings.HasPrefix(text, "["):
		if err := json.Unmarshal([]byte(text), &items); err != nil {
			return nil, invalid(`%s must be a JSON array of strings: %v`, name, err)
		}
	default:
		items = strings.Split(text, ",")
	}
	var volumes []Volume
	seen := map[string]bool{}
	for i, item := range items {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		v, why := parseVolume(item)
		if why == "" && seen[v.Guest] {
			why = "the container path " + v.Guest + " is used by an earlier mapping"
		}
		if why != "" {
			return nil, invalid("%s: mapping %d (%q): %s", name, i+1, item, why)
		}
		seen[v.Guest] = true
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// ownerMark stands for the directory of an owner at the end of a host path.
const ownerMark = "{owner}"

// parseOptions parses what follows the container path; why is the reason if it is invalid.
func (v *Volume) parseOptions(text string) (why string) {
	for option := range strings.SplitSeq(text, ":") {
		switch option = strings.TrimSpace(option); option {
		case "":
			if text != "" {
				return "an option after the container path is empty"
			}
		case "ro":
			v.ReadOnly = true
		case "rw":
			v.Writable = true
		default:
			size, ok := strings.CutPrefix(option, "quota=")
			if !ok {
				return "only :ro, :rw or :quota=SIZE may follow the container path"
			}
			if v.Quota, ok = parseSize(size); !ok {
				return "the quota must be a size such as 500M or 2G, from 1M to 1000T"
			}
		}
	}
	switch {
	case v.ReadOnly && v.Writable:
		return ":ro and :rw exclude each other"
	case v.ReadOnly && v.Quota > 0:
		return "a read-only volume has no quota"
	}
	return ""
}

// parseSize parses a number of MiB, GiB or TiB: 500M, 2G, 1T.
func parseSize(text string) (bytes int64, ok bool) {
	if text == "" {
		return 0, false
	}
	shift, ok := map[byte]int{'M': 20, 'G': 30, 'T': 40}[text[len(text)-1]]
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 32)
	if !ok || err != nil || n < 1 || n > 1000<<(40-shift) {
		return 0, false
	}
	return n << shift, true
}

// checkVolumes returns an error if a volume and another, in which each owner has a
// directory, contain each other: boxes must not reach the directories of all owners. It
// also returns one if boxes could write to a directory with a quota through a mapping with
// another quota or none.
func checkVolumes(volumes []Volume) error {
	for i, v := range volumes {
		for j, other := range volumes {
			same := other.PerOwner && other.Host == v.Host
			if v.PerOwner && same && v.Quota != other.Quota && !v.ReadOnly && !other.ReadOnly {
				return invalid("volume: %s/{owner} is shared at %s and %s with different quotas; give both the same quota, or share one of them with :ro", v.Host, v.Guest, other.Guest)
			}
			if i != j && v.PerOwner && !same && (within([]string{v.Host}, other.Host) || within([]string{other.Host}, v.Host)) {
				return invalid("volume: the volume %s must not contain or lie in %s, which has a directory for each owner", other.Host, v.Host)
			}
		}
	}
	return nil
}

// parseVolume parses one mapping; why is the reason if it is invalid.
func parseVolume(item string) (v Volume, why string) {
	host, guest, ok := strings.Cut(item, ":")
	if !ok {
		return v, "must be host:container"
	}
	host, guest = strings.TrimSpace(host), strings.TrimSpace(guest)
	guest, options, _ := strings.Cut(guest, ":")
	if why := v.parseOptions(options); why != "" {
		return v, why
	}
	guest = strings.TrimSpace(guest)
	if parent, found := strings.CutSuffix(host, "/"+ownerMark); found {
		host, v.PerOwner = parent, true
	}
	switch {
	case host == "":
		return v, "the host path is empty"
	case guest == "":
		return v, "the container path is empty"
	case v.Quota > 0 && !v.PerOwner:
		return v, "quota= needs a directory for each owner, as in /srv/shared/{owner}:/shared:quota=2G, since one owner could use up a common quota for the others"
	case strings.Contains(host, ownerMark):
		return v, "{owner} must be the last element of the host path, as in /srv/shared/{owner}:/shared"
	case !filepath.IsAbs(host):
		return v, "the host path must be absolute"
	case !path.IsAbs(guest):
		return v, "the container path must be absolute"
	}
	v.Guest = path.Clean(guest)
	if why := reserved(v.Guest); why != "" {
		return v, why
	}
	resolved, err := filepath.EvalSymlinks(host)
	if err != nil {
		return v, err.Error()
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return v, err.Error()
	}
	if !info.IsDir() {
		return v, "the host path is not a directory"
	}
	if resolved == "/" {
		return v, "the root directory must not be shared"
	}
	v.Host = resolved
	return v, ""
}

// reserved returns why a volume cannot be at guest, or "".
func reserved(guest string) string {
	if guest == "/" || guest == "/home" || guest == "/tmp" || guest == "/home/user" {
		return "the container path " + guest + " belongs to the box; use a directory such as /shared/input"
	}
	top, _, _ := strings.Cut(guest[1:], "/")
	switch top {
	case "proc", "sys", "dev", "etc", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "run":
		return "the container path must not lie in /" + top + "; use a directory such as /shared/input"
	}
	return ""
}
