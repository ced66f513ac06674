package metrics

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/egress"
)

// other is the label value for everything outside a closed set.
const other = "other"

// The closed sets of label values.
var (
	methods = []string{
		"completion/complete", "initialize", "logging/setLevel", "notifications/cancelled", "notifications/initialized",
		"notifications/progress", "notifications/roots/list_changed", "ping", "prompts/get", "prompts/list",
		"resources/list", "resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe",
		"server/discover", "subscriptions/listen", "tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update",
		"tools/call", "tools/list",
	}
	// codes are the error codes of JSON-RPC, MCP and our transport.
	codes = []string{
		"-32700", "-32600", "-32601", "-32602", "-32603",
		"-32000", "-32001", "-32002", "-32003", "-32004", "-32020", "-32021", "-32022", "-32042",
	}
	statuses = func() (known []string) {
		for status := 400; status < 600; status++ {
			if http.StatusText(status) != "" {
				known = append(known, strconv.Itoa(status))
			}
		}
		return known
	}()
	states = texts(box.StateCreating, box.StateReady, box.StateRunning, box.StatePaused,
		box.StateHibernated, box.StateError, box.StateStopped)
	kinds     = texts(box.KindSession, box.KindContext)
	flavors   = texts(box.FlavorSmall, box.FlavorMedium, box.FlavorLarge)
	templates = texts(box.InterpreterPython, box.InterpreterNode)
	sources   = texts(box.SourceWarm, box.SourceCold, box.SourceBoot, box.SourceWoken, box.SourceFork, box.SourceSnapshot, box.SourceAdopted)
	reasons   = texts(box.ReasonStopped, box.ReasonIdle, box.ReasonEvicted, box.ReasonOOM, box.ReasonDisk, box.ReasonCrashed,
		box.ReasonExited, box.ReasonShutdown, box.ReasonHibernated, box.ReasonRolledBack,
		box.ReasonHostRestart, box.ReasonUnreadable)
	egressOutcomes = texts(egress.Outcomes()...)
	egressReasons  = texts(egress.Reasons()...)
	scanResults    = texts(volume.Outcomes()...)
	lookups        = []string{"ok", "nxdomain", "refused", "failed"}
)

func texts[T ~string](set ...T) []string {
	list := make([]string, len(set))
	for i, v := range set {
		list[i] = string(v)
	}
	return list
}

// oneOf returns v if it is in the set, otherwise other.
func oneOf(v string, set []string) string {
	if slices.Contains(set, v) {
		return v
	}
	return other
}
