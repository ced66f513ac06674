package tools

import "context"

var (
	getVolumePath     = define(volumes("get_volume_path", "Show shared directories"), volumePaths)
	getVolumeMappings = define(volumes("get_volume_mappings", "Show shared directories (other name)"), volumePaths)
)

func volumes(name, title string) info {
	d := "List the directories of the host that your sandboxes share: what code writes below container_path is on the host below host_path. File locks and appends do not hold between sandboxes: do not share a SQLite database; to take turns, use mkdir as a lock."
	if name != "get_volume_path" {
		d = "The same as get_volume_path: list the directories of the host that your sandboxes share."
	}
	return info{name: name, title: title, description: d, set: Sessions, volumes: true, alias: name != "get_volume_path", family: sessionErrors, readOnly: true, idempotent: true}
}

func volumePaths(_ context.Context, c *Call, _ struct{}) (volumesOut, error) {
	out := volumesOut{VolumeMappings: []volume{}}
	for _, m := range c.Boxes.VolumesOf(c.Owner) {
		out.VolumeMappings = append(out.VolumeMappings, volume{m.Host, m.Guest, m.ReadOnly || m.Frozen})
	}
	return out, nil
}

type volumesOut struct {
	VolumeMappings []volume `json:"volume_mappings" jsonschema:"the shared directories"`
}

type volume struct {
	HostPath      string `json:"host_path" jsonschema:"directory on the host"`
	ContainerPath string `json:"container_path" jsonschema:"where it is in the sandbox"`
	ReadOnly      bool   `json:"read_only,omitempty" jsonschema:"whether the sandbox may only read it"`
}

func (o volumesOut) present() presentation { return listing(o.VolumeMappings) }
