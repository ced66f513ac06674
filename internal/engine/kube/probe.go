package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
)

// probeWait bounds the requests of Probe, which take milliseconds: a cluster behind a
// firewall that drops packets must not hold up the report.
const probeWait = 15 * time.Second

// applyRights is what to type if the role lacks something.
const applyRights = "type: kubectl apply -f packaging/kube/rbac.yaml, with the namespace and the subject of these credentials; see docs/kubernetes.md"

// Probe examines whether these settings give a usable cluster. It sends read requests only,
// and stops at the first problem that makes further ones pointless.
func Probe(ctx context.Context, s Settings) []engine.Finding {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	cluster, err := kubeconfig.Load(kubeconfig.Options{Context: s.Context})
	if err != nil {
		return []engine.Finding{clusterFailure(err)}
	}
	namespace := s.namespaceOf(cluster)
	found := []engine.Finding{{
		Name: "cluster", Level: engine.LevelOK,
		Detail: fmt.Sprintf("%s at %s, as %s, namespace %s", cluster.Name, cluster.Server.Host, cluster.Auth.User(), namespace),
	}}
	api := kubeapi.New(cluster)
	defer api.Close()
	version, err := api.Version(ctx)
	if err != nil {
		return append(found, apiFailure(err, cluster))
	}
	found = append(found, engine.Finding{Name: "kubernetes", Level: engine.LevelOK, Detail: version})
	rights, usable := probeRights(ctx, api, namespace)
	found = append(found, rights)
	if !usable {
		return found // each further request would fail alike
	}
	return append(found, probeClass(ctx, api, cmp.Or(s.RuntimeClass, DefaultRuntimeClass)), probeQuota(ctx, api, namespace))
}

// clusterFailure is the finding on a kubeconfig that selects no cluster.
func clusterFailure(err error) engine.Finding {
	f := engine.Finding{Name: "cluster", Level: engine.LevelFail, Detail: err.Error(), Fix: "list the contexts with: kubectl config get-contexts; choose one with --kube-context"}
	if errors.Is(err, kubeconfig.ErrNone) {
		f.Fix = "type: export KUBECONFIG=FILE, or give the Pod of this program a service account; see docs/kubernetes.md"
	}
	return f
}

// apiFailure is the finding on an API that does not answer, or refuses the credentials.
func apiFailure(err error, c *kubeconfig.Cluster) engine.Finding {
	f := engine.Finding{
		Name: "kubernetes", Level: engine.LevelFail, Detail: err.Error(),
		Fix: fmt.Sprintf("check that this machine reaches %s, with: kubectl --context %s version", c.Server.Host, c.Name),
	}
	if code := kubeapi.Code(err); code == http.StatusUnauthorized || code == http.StatusForbidden {
		f.Fix = "log in to the cluster again, and check with: kubectl auth whoami"
	}
	return f
}

// probeRights asks for each right that the engine needs. usable is false if the cluster
// did not answer.
func probeRights(ctx context.Context, api *kubeapi.Client, namespace string) (f engine.Finding, usable bool) {
	f = engine.Finding{Name: "permissions", Level: engine.LevelOK}
	var missing, dispensable []string
	note := ""
	all := rights()
	for _, r := range all {
		where := namespace
		if r.clusterWide {
			where = ""
		}
		allowed, err := api.Allowed(ctx, where, r.Access)
		switch {
		case err != nil:
			f.Level, f.Detail, f.Fix = engine.LevelFail, fmt.Sprintf("ask whether the credentials may %s: %v", r, err), "log in to the cluster again, and check with: kubectl auth whoami"
			return f, false
		case allowed:
		case r.without != "":
			dispensable, note = append(dispensable, r.String()), r.without
		default:
			missing = append(missing, r.String())
		}
	}
	switch {
	case len(missing) > 0:
		f.Level, f.Fix = engine.LevelFail, applyRights
		f.Detail = fmt.Sprintf("in namespace %s the credentials may not %s", namespace, strings.Join(append(missing, dispensable...), ", "))
	case len(dispensable) > 0:
		f.Level, f.Fix = engine.LevelWarn, applyRights
		f.Detail = fmt.Sprintf("in namespace %s the credentials may not %s: %s", namespace, strings.Join(dispensable, ", "), note)
	default:
		f.Detail = fmt.Sprintf("all %d that are needed in namespace %s", len(all), namespace)
	}
	return f, true
}

// probeClass reports whether Pods can have a kernel of their own.
func probeClass(ctx context.Context, api *kubeapi.Client, class string) engine.Finding {
	f := engine.Finding{Name: "runtime class", Level: engine.LevelOK, Detail: class}
	exists, err := api.RuntimeClassExists(ctx, class)
	switch {
	case err != nil:
		f.Level, f.Detail, f.Fix = engine.LevelFail, err.Error(), applyRights
	case !exists:
		f.Level = engine.LevelFail
		f.Detail = fmt.Sprintf("the cluster has no runtime class %q: Pods would share the nodes' kernel", class)
		f.Fix = "install gVisor on the nodes and make a RuntimeClass for it, or name another with --kube-runtime-class"
		// The role need not allow the list.
		if names, err := api.ListRuntimeClasses(ctx); err == nil && len(names) > 0 {
			f.Fix += "; the cluster has " + strings.Join(names, ", ")
		}
	}
	return f
}

// probeQuota reports the quotas of the namespace. The role need not allow to read them.
func probeQuota(ctx context.Context, api *kubeapi.Client, namespace string) engine.Finding {
	f := engine.Finding{Name: "quota", Level: engine.LevelOK}
	quotas, err := api.ListQuotas(ctx, namespace)
	switch {
	case kubeapi.Code(err) == http.StatusForbidden:
		f.Detail = "not examined: the credentials may not list resourcequotas, which boxes do not need"
		return f
	case err != nil:
		f.Level, f.Detail = engine.LevelWarn, err.Error()
		return f
	case len(quotas) == 0:
		f.Level = engine.LevelWarn
		f.Detail = fmt.Sprintf("namespace %s has none: boxes may use all of the cluster", namespace)
		f.Fix = fmt.Sprintf("type: kubectl create quota glovebox -n %s --hard=pods=20,limits.cpu=20,limits.memory=32Gi", namespace)
		return f
	}
	var parts []string
	for _, q := range quotas {
		for name, hard := range q.Status.Hard {
			used := q.Status.Used[name]
			parts = append(parts, detail(fmt.Sprintf("%s %s of %s", name, used, hard)))
			if used == hard {
				f.Level = engine.LevelWarn
				f.Fix = "raise the quota, or stop boxes: a new one will be refused"
			}
		}
	}
	slices.Sort(parts)
	f.Detail = "used: " + detail(strings.Join(parts, ", "))
	return f
}
