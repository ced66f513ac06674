package policy

import "slices"

// presets are named lists of hosts. None has a wildcard: below some of these names,
// anybody can register one.
var presets = []struct {
	name  string
	ports []uint16
	hosts []string
}{
	{"debian", []uint16{80, 443}, []string{"deb.debian.org", "cdn-fastly.deb.debian.org", "security.debian.org", "snapshot.debian.org"}},
	{"github", []uint16{443}, []string{
		"github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com", "objects.githubusercontent.com",
		"media.githubusercontent.com", "release-assets.githubusercontent.com", "gist.githubusercontent.com",
	}},
	{"go", []uint16{443}, []string{"proxy.golang.org", "sum.golang.org"}},
	{"huggingface", []uint16{443}, []string{
		"huggingface.co", "hf.co", "cdn-lfs.huggingface.co", "cdn-lfs-us-1.huggingface.co", "cdn-lfs-eu-1.huggingface.co",
		"cdn-lfs.hf.co", "cas-bridge.xethub.hf.co", "cas-server.xethub.hf.co", "transfer.xethub.hf.co",
	}},
	{"npm", []uint16{443}, []string{"registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org"}}, // node-gyp reads headers from the last
	{"pypi", []uint16{443}, []string{"pypi.org", "files.pythonhosted.org"}},
}

// PresetNames returns the names of all presets, sorted.
func PresetNames() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return names
}

// Preset returns the rule of a preset.
func Preset(name string) (Rule, bool) {
	for _, p := range presets {
		if p.name != name {
			continue
		}
		r := Rule{Name: name, Ports: slices.Clone(p.ports)}
		for _, h := range p.hosts {
			r.Hosts = append(r.Hosts, Pattern{name: h})
		}
		return r, true
	}
	return Rule{}, false
}

// EntryFor returns the entry of a list of destinations, as for [ParseRule], that allows a
// host at a port: a preset, or the host, with the port unless it is one of the web or 0. It
// is empty if host is neither a name nor an address.
func EntryFor(host string, port uint16) string {
	canonical, err := ParseHost(host)
	if err != nil {
		return ""
	}
	if p, ok := Preset(PresetFor(canonical)); ok && (port == 0 || slices.Contains(p.Ports, port)) {
		return p.Name
	}
	pattern, err := ParsePattern(canonical)
	if err != nil {
		return ""
	}
	r := Rule{Name: Custom, Hosts: []Pattern{pattern}, Ports: webPorts}
	if port != 0 && !slices.Contains(webPorts, port) {
		r.Ports = []uint16{port}
	}
	return r.String()
}

// PresetFor returns the name of the preset that contains a host, or an empty string.
func PresetFor(host string) string {
	host, err := ParseHost(host)
	if err != nil {
		return ""
	}
	for _, p := range presets {
		if slices.Contains(p.hosts, host) {
			return p.name
		}
	}
	return ""
}
