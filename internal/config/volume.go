package config

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
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

// parseVolume parses one mapping; why is the reason if it is invalid.
func parseVolume(item string) (v Volume, why string) {
	host, guest, ok := strings.Cut(item, ":")
	if !ok {
		return v, "must be host:container"
	}
	host, guest = strings.TrimSpace(host), strings.TrimSpace(guest)
	if rest, found := strings.CutSuffix(guest, ":ro"); found {
		guest, v.ReadOnly = strings.TrimSpace(rest), true
	} else {
		guest = strings.TrimSpace(strings.TrimSuffix(guest, ":rw"))
	}
	switch {
	case host == "":
		return v, "the host path is empty"
	case guest == "":
		return v, "the container path is empty"
	case strings.Contains(guest, ":"):
		return v, "only :ro or :rw may follow the container path"
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
