package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../glovebox"
	digest   = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
)

// required are the values without a default.
const required = `
image: {repository: registry.example/team/glovebox, digest: "` + digest + `"}
boxes: {image: "python@` + digest + `", helperImage: "registry.example/team/helper@` + digest + `"}
tokens: {existingSecret: glovebox-tokens}
tls: {existingSecret: glovebox-tls}
`

// everything turns on what is off by default.
var everything = []string{
	"autoscaling.enabled=true", "autoscaling.calls.average=8", "serviceMonitor.enabled=true", "serviceMonitor.tokenSecret=scrape",
	"serviceMonitor.labels.release=prometheus", "serviceMonitor.tlsConfig.serverName=glovebox.example.org", "image.pullSecrets={registry}",
	"mounts.secrets={search}", "mounts.configMaps={network}", "config.GLOVEBOX_NETWORK_FILE=/etc/glovebox/config/network/network.toml",
	"config.MSB_MAX_SESSIONS=20", "boxes.warm=2", "boxes.namespace=boxes", "shareBoxes=true", "podLabels.team=a", "podAnnotations.note=b", "nodeSelector.disk=ssd",
	"tolerations[0].operator=Exists", "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
	"priorityClassName=high", "service.annotations.x=y", "serviceAccount.annotations.role=z",
	"networkPolicy.from[0].namespaceSelector.matchLabels.name=ingress", "networkPolicy.egress[0].ports[0].port=443",
}

// command runs the tool over the chart with the required values and settings.
func command(t *testing.T, verb string, settings []string, flags ...string) (string, error) {
	t.Helper()
	file := t.TempDir() + "/values.yaml"
	if err := os.WriteFile(file, []byte(required), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{verb, chartDir, "-f", file}, flags...)
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	var out bytes.Buffer
	err := run(args, &out)
	return out.String(), err
}

// objects returns the rendered objects by kind and name.
func objects(t *testing.T, settings ...string) map[string]map[string]any {
	t.Helper()
	text, err := command(t, "template", settings)
	if err != nil {
		t.Fatalf("render with %q: %v", settings, err)
	}
	return parse(t, text)
}

func parse(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := make(map[string]map[string]any)
	for _, doc := range strings.Split("\n"+text, "\n---") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o == nil {
			continue
		}
		meta := o["metadata"].(map[string]any)
		key := o["kind"].(string) + " " + meta["name"].(string)
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o
	}
	return all
}

// at returns a field of an object, nil if it is not there.
func at(o any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := o.(map[string]any)
			o = m[p]
		case int:
			l, _ := o.([]any)
			if p >= len(l) {
				return nil
			}
			o = l[p]
		}
	}
	return o
}

// TestChart_RefusesWithoutRequiredValues: each refusal names the value and the next step.
func TestChart_RefusesWithoutRequiredValues(t *testing.T) {
	if err := run([]string{"template", chartDir}, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "scripts/kube/image server") {
		t.Errorf("the default values give %v", err)
	}
	for setting, want := range map[string]string{
		"image.repository=":                                   "image.repository is empty",
		"image.repository=a/b@" + digest:                      "write the digest into image.digest",
		"image.digest=":                                       "crane digest registry.example/team/glovebox:latest",
		"image.digest=sha256:12":                              "64 hexadecimal digits",
		"boxes.image=python:3.13":                             "NAME@sha256:DIGEST",
		"boxes.helperImage=":                                  "scripts/kube/image helper",
		"boxes.imageHasHelper=true":                           "exclude each other",
		"tokens.existingSecret=":                              "glovebox token new --name alice",
		"tls.existingSecret=":                                 "tls.behindProxy=true",
		"tls.behindProxy=true":                                "exclude each other",
		"config.GLOVEBOX_ENGINE=gvisor":                       "the chart sets this variable itself",
		"config.GLOVEBOX_INSECURE_BIND=true":                  "the chart sets this variable itself",
		"config.GLOVEBOX_KUBE_PEER_ADDRESS=10.0.0.1:1":        "the chart sets this variable itself",
		"config.PERPLEXITY_API_KEY=k":                         "mounts.secrets",
		"config.OTEL_EXPORTER_OTLP_HEADERS=k":                 "mounts.secrets",
		"serviceAccount.create=false":                         "name an existing service account",
		"serviceMonitor.enabled=true":                         "scope metrics",
		"podLabels.app\\.kubernetes\\.io/managed-by=glovebox": "marks boxes",
	} {
		_, err := command(t, "template", []string{setting})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: got %v, want %q", setting, err, want)
		}
	}
	for _, settings := range [][]string{
		{"autoscaling.enabled=true", "autoscaling.cpuPercent=0"},
		{"autoscaling.enabled=true", "autoscaling.minReplicas=9"},
		{"autoscaling.enabled=true", "resources.requests=null"},
	} {
		if _, err := command(t, "template", settings); err == nil || !strings.Contains(err.Error(), "autoscaling.") && !strings.Contains(err.Error(), "autoscaling ") {
			t.Errorf("%q: got %v", settings, err)
		}
	}
}

// TestChart_RefusesUnknownAndWrongValues: a misspelt value must not be ignored.
func TestChart_RefusesUnknownAndWrongValues(t *testing.T) {
	for _, setting := range []string{
		"replica=3", "image.tag=latest", "boxes.memory=1", "tokens.value=gbx_1", "config.PATH=/bin", "shutdown.drain=1", "resources.request.cpu=1",
		"replicas=0", "replicas=many", "service.affinitySeconds=90000", "service.type=ExternalName", "stateSize=big", "boxes.namespace=A_b", "listenAddress=127.0.0.1",
		"tokens.existingSecret=-x", "podDisruptionBudget.maxUnavailable=most",
	} {
		if _, err := command(t, "template", []string{setting}); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("--set %s: got %v", setting, err)
		}
	}
}

// TestChart_RendersKnownKinds also decodes every object strictly: see documents.
func TestChart_RendersKnownKinds(t *testing.T) {
	few := slices.Sorted(maps.Keys(objects(t)))
	want := []string{
		"ClusterRole glovebox", "ClusterRoleBinding glovebox", "Deployment glovebox", "NetworkPolicy glovebox", "NetworkPolicy glovebox-no-traffic",
		"PodDisruptionBudget glovebox", "Role glovebox", "RoleBinding glovebox", "Service glovebox", "ServiceAccount glovebox",
	}
	if !slices.Equal(few, want) {
		t.Errorf("the objects are %q", few)
	}
	all := objects(t, everything...)
	if len(all) != len(want)+2 || all["HorizontalPodAutoscaler glovebox"] == nil || all["ServiceMonitor glovebox"] == nil {
		t.Errorf("with everything, the objects are %q", slices.Sorted(maps.Keys(all)))
	}
	if at(all["Deployment glovebox"], "spec", "replicas") != nil {
		t.Error("the Deployment and the autoscaler both set the replicas")
	}
	few = slices.Sorted(maps.Keys(objects(t, "serviceAccount.create=false", "serviceAccount.name=own", "rbac.create=false", "podDisruptionBudget.enabled=false",
		"networkPolicy.enabled=false", "networkPolicy.boxes=false")))
	if !slices.Equal(few, []string{"Deployment glovebox", "Service glovebox"}) {
		t.Errorf("with little, the objects are %q", few)
	}
	for _, settings := range [][]string{nil, everything, {"tls.existingSecret=", "tls.behindProxy=true"}, {"boxes.helperImage=", "boxes.imageHasHelper=true"}, {"tokens.existingSecret=", "config.GLOVEBOX_OIDC_ISSUER=https://login.example.org"}} {
		if out, err := command(t, "lint", settings); err != nil {
			t.Errorf("lint with %q: %v\n%s", settings, err, out)
		}
	}
}

// TestChart_RightsAreThoseOfTheManifest compares the two places that have the rights.
func TestChart_RightsAreThoseOfTheManifest(t *testing.T) {
	text, err := os.ReadFile("../../kube/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest, chart := parse(t, string(text)), objects(t)
	if len(manifest) != 5 {
		t.Errorf("the manifest has %d objects", len(manifest))
	}
	for key, want := range manifest {
		got := chart[key]
		if got != nil {
			delete(got["metadata"].(map[string]any), "labels")
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the chart has\n%v\nand packaging/kube/rbac.yaml\n%v", key, got, want)
		}
	}
	// With a namespace of their own, the role is where boxes are, for the account where the server is.
	for _, key := range []string{"Role glovebox", "RoleBinding glovebox"} {
		o := objects(t, "boxes.namespace=boxes")[key]
		if at(o, "metadata", "namespace") != "boxes" {
			t.Errorf("%s is in %v", key, at(o, "metadata", "namespace"))
		}
		if s := at(o, "subjects", 0, "namespace"); s != nil && s != "glovebox" {
			t.Errorf("%s is for an account of %v", key, s)
		}
	}
}

// TestChart_ServerIsRestricted: the Pod fits Pod Security's profile restricted, and more.
func TestChart_ServerIsRestricted(t *testing.T) {
	pod := at(objects(t, everything...)["Deployment glovebox"], "spec", "template", "spec")
	container := at(pod, "containers", 0)
	for _, c := range []struct {
		got, want any
	}{
		{at(pod, "securityContext", "runAsNonRoot"), true},
		{at(pod, "securityContext", "runAsUser"), 1000.0},
		{at(pod, "securityContext", "seccompProfile", "type"), "RuntimeDefault"},
		{at(pod, "enableServiceLinks"), false},
		{at(container, "securityContext", "allowPrivilegeEscalation"), false},
		{at(container, "securityContext", "readOnlyRootFilesystem"), true},
		{at(container, "securityContext", "capabilities", "drop"), []any{"ALL"}},
		{at(container, "securityContext", "capabilities", "add"), nil},
		{at(pod, "hostNetwork"), nil},
		{at(pod, "terminationGracePeriodSeconds"), 365.0},
		{at(container, "livenessProbe", "httpGet", "path"), "/health"},
		{at(container, "readinessProbe", "httpGet", "path"), "/ready"},
		{at(container, "startupProbe", "httpGet", "scheme"), "HTTPS"},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	for _, v := range at(pod, "volumes").([]any) {
		for kind := range v.(map[string]any) {
			if !slices.Contains([]string{"name", "emptyDir", "secret", "configMap"}, kind) {
				t.Errorf("the Pod has a volume of the kind %s", kind)
			}
		}
	}
}

// TestChart_ImagesByDigest: no image is named by a tag.
func TestChart_ImagesByDigest(t *testing.T) {
	byDigest := regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)
	pod := at(objects(t, everything...)["Deployment glovebox"], "spec", "template", "spec")
	images := []string{at(pod, "containers", 0, "image").(string)}
	for _, e := range at(pod, "containers", 0, "env").([]any) {
		if strings.HasSuffix(at(e, "name").(string), "_IMAGE") {
			images = append(images, at(e, "value").(string))
		}
	}
	if len(images) != 3 {
		t.Errorf("the images are %q", images)
	}
	for _, image := range images {
		if !byDigest.MatchString(image) {
			t.Errorf("the image %s has no digest", image)
		}
	}
}

// TestChart_PassesSettings: each value that is a setting of the server reaches it, and what
// is not set leaves the server's default.
func TestChart_PassesSettings(t *testing.T) {
	env := func(settings ...string) map[string]any {
		all := make(map[string]any)
		for _, e := range at(objects(t, settings...)["Deployment glovebox"], "spec", "template", "spec", "containers", 0, "env").([]any) {
			name := at(e, "name").(string)
			if _, twice := all[name]; twice {
				t.Errorf("%s is there twice", name)
			}
			all[name] = at(e, "value")
		}
		return all
	}
	for _, name := range []string{"GLOVEBOX_KUBE_WARM", "GLOVEBOX_KUBE_PEER_ADDRESS", "POD_IP", "GLOVEBOX_BEHIND_PROXY", "MSB_MAX_SESSIONS"} {
		if v, ok := env()[name]; ok {
			t.Errorf("by default, %s is %v", name, v)
		}
	}
	got := env("boxes.warm=2", "boxes.namespace=other", "boxes.runtimeClass=kata", "shutdown.drainSeconds=9", "listenAddress=::",
		"tls.existingSecret=", "tls.behindProxy=true", "config.MSB_MAX_SESSIONS=20", "config.GLOVEBOX_LOG_FORMAT=text")
	want := map[string]any{
		"GLOVEBOX_ENGINE": "kube", "GLOVEBOX_IMAGE": "python@" + digest, "GLOVEBOX_KUBE_HELPER_IMAGE": "registry.example/team/helper@" + digest,
		"GLOVEBOX_KUBE_NAMESPACE": "other", "GLOVEBOX_KUBE_RUNTIME_CLASS": "kata", "GLOVEBOX_KUBE_WARM": "2", "GLOVEBOX_STATE_DIR": "/var/lib/glovebox",
		"GLOVEBOX_DRAIN_TIMEOUT": "9", "MCP_SERVER_HOST": "::", "MCP_SERVER_PORT": "8775", "GLOVEBOX_TOKENS_FILE": "/etc/glovebox/tokens/tokens.toml",
		"GLOVEBOX_BEHIND_PROXY": "true", "GLOVEBOX_LOG_FORMAT": "text", "MSB_MAX_SESSIONS": "20",
	}
	if !maps.Equal(got, want) {
		t.Errorf("the variables are\n%v, want\n%v", got, want)
	}
}

// TestChart_SharesBoxes: servers that share boxes know their own address, and may reach each
// other whatever else the network policy says.
func TestChart_SharesBoxes(t *testing.T) {
	peers := map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{
		"app.kubernetes.io/name": "glovebox", "app.kubernetes.io/instance": "glovebox", "app.kubernetes.io/component": "server",
	}}}
	for address, want := range map[string]string{"0.0.0.0": "$(POD_IP):8775", "::": "[$(POD_IP)]:8775"} {
		all := objects(t, "shareBoxes=true", "listenAddress="+address, "networkPolicy.from[0].podSelector.matchLabels.a=b", "networkPolicy.egress[0].ports[0].port=443")
		env := at(all["Deployment glovebox"], "spec", "template", "spec", "containers", 0, "env").([]any)
		i := slices.IndexFunc(env, func(e any) bool { return at(e, "name") == "GLOVEBOX_KUBE_PEER_ADDRESS" })
		if i < 1 || at(env[i], "value") != want || at(env[i-1], "valueFrom", "fieldRef", "fieldPath") != "status.podIP" {
			t.Errorf("listening on %s, the variables are %v", address, env)
		}
		policy := all["NetworkPolicy glovebox"]["spec"]
		if to := at(policy, "egress", 0, "to", 0); !reflect.DeepEqual(to, peers) {
			t.Errorf("servers may reach %v", to)
		}
		if from := at(policy, "ingress", 1, "from", 0); !reflect.DeepEqual(from, peers) {
			t.Errorf("servers accept connections from %v", from)
		}
	}
	if policy := objects(t)["NetworkPolicy glovebox"]["spec"]; at(policy, "egress", 0, "to") != nil {
		t.Error("servers that share nothing may reach each other")
	}
}

// TestChart_MakesNoSecret: secrets are files of Secrets that exist, never objects of the
// chart or variables.
func TestChart_MakesNoSecret(t *testing.T) {
	text, err := command(t, "template", everything)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"kind: Secret", "kind: ConfigMap", "secretKeyRef", "configMapKeyRef", "envFrom", "gbx_"} {
		if strings.Contains(text, word) {
			t.Errorf("the chart renders %q", word)
		}
	}
	pod := at(parse(t, text)["Deployment glovebox"], "spec", "template", "spec")
	for _, v := range at(pod, "volumes").([]any) {
		if s := at(v, "secret"); s != nil && at(s, "defaultMode") != float64(0o440) {
			t.Errorf("the volume %v has the mode %v", at(v, "name"), at(s, "defaultMode"))
		}
	}
}

// TestChart_SessionAffinity: the Service sends a client's address to one Pod unless told
// otherwise.
func TestChart_SessionAffinity(t *testing.T) {
	spec := objects(t)["Service glovebox"]["spec"]
	if at(spec, "sessionAffinity") != "ClientIP" || at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds") != 10800.0 {
		t.Errorf("the Service is %v", spec)
	}
	if spec := objects(t, "service.affinitySeconds=0")["Service glovebox"]["spec"]; at(spec, "sessionAffinity") != nil {
		t.Errorf("without affinity, the Service is %v", spec)
	}
}

// TestChart_NamesOfReleases: two releases of a namespace do not share names.
func TestChart_NamesOfReleases(t *testing.T) {
	for name, want := range map[string]string{"glovebox": "glovebox", "my-glovebox": "my-glovebox", "boxes": "boxes-glovebox", strings.Repeat("a", 53): strings.Repeat("a", 41) + "-glovebox"} {
		text, err := command(t, "template", nil, "--name", name)
		if err != nil {
			t.Fatal(err)
		}
		if parse(t, text)["Deployment "+want] == nil {
			t.Errorf("the release %s has no Deployment %s", name, want)
		}
	}
}

// TestChart_NotesNameObjects: the commands that helm install prints are about this release.
func TestChart_NotesNameObjects(t *testing.T) {
	text, err := command(t, "template", []string{"service.port=443"}, "--notes", "--namespace", "tools", "--name", "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kubectl --namespace tools rollout status deployment/a-glovebox", "port-forward service/a-glovebox 443", "https://127.0.0.1:443/mcp", "Mcp-Session-Id", "scale deployment/a-glovebox --replicas=0", "instance=a --timeout=365s"} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes lack %q:\n%s", want, text)
		}
	}
}

// schema is a part of values.schema.json.
type schema struct {
	Type       any
	Additional any `json:"additionalProperties"`
	Properties map[string]*schema
}

// TestValues_AreDescribed: the schema and the defaults have the same keys, each with a
// comment above it, and no object accepts unknown keys by accident.
func TestValues_AreDescribed(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(chartDir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(file, &s); err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.UnmarshalStrict(text, &defaults); err != nil {
		t.Fatal(err)
	}
	commented := make(map[string]bool)
	var path []string
	previous := ""
	for line := range strings.Lines(string(text)) {
		if m := regexp.MustCompile(`^( *)([A-Za-z]+):`).FindStringSubmatch(line); m != nil {
			path = append(path[:len(m[1])/2], m[2])
			commented[strings.Join(path, ".")] = strings.HasPrefix(strings.TrimSpace(previous), "# ")
		}
		previous = line
	}
	count := 0
	var walk func(at string, s *schema, defaults map[string]any)
	walk = func(at string, s *schema, defaults map[string]any) {
		if s.Additional != false {
			t.Errorf("%q accepts unknown keys", at)
		}
		if got, want := slices.Sorted(maps.Keys(defaults)), slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(got, want) {
			t.Errorf("%q: values.yaml has %q, the schema %q", at, got, want)
		}
		for name, p := range s.Properties {
			full := strings.TrimPrefix(at+"."+name, ".")
			count++
			if !commented[full] {
				t.Errorf("values.yaml does not describe %s", full)
			}
			if p.Properties != nil {
				inner, _ := defaults[name].(map[string]any)
				walk(full, p, inner)
			}
		}
	}
	walk("", &s, defaults)
	if count < 60 {
		t.Errorf("found only %d values", count)
	}
}
