package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

const (
	managedLabel = "app.kubernetes.io/managed-by"
	managedBy    = "glovebox"
	roleLabel    = "glovebox.dev/role"
	roleBox      = "box"
	holderLabel  = "glovebox.dev/owner" // the engine that holds the Pod

	idAnnotation    = "glovebox.dev/id"
	nonceAnnotation = "glovebox.dev/creation"

	selector = managedLabel + "=" + managedBy + "," + roleLabel + "=" + roleBox

	containerName = "box"
	// graceSeconds is the time for a helper to end: it takes milliseconds.
	graceSeconds = 1

	// shareName is the volume with the programs that are in another image than the box's.
	shareName = "glovebox"
	sharePath = "/.glovebox"
	shareSize = "256Mi"
)

// word is an id that may be part of a name in Kubernetes.
var word = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$`)

// podName returns the name of a guest's Pod. Kubernetes does not accept every id in a
// name; podName hashes the others and gives them another prefix.
func podName(id string) string {
	if word().MatchString(id) {
		return "box-" + id
	}
	sum := sha256.Sum256([]byte(id))
	return "boxid-" + hex.EncodeToString(sum[:16])
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, engine.ErrUnsupported)...)
}

// pod returns the Pod of a guest, after checks of the spec.
func (e *Engine) pod(ctx context.Context, id string, s *engine.Spec) (*kubeapi.Pod, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	image, err := reference(s.Root.Image, "root")
	if err != nil {
		return nil, err
	}
	agentImage, err := reference(s.Agent.Image, "agent")
	if err != nil {
		return nil, err
	}
	helperImage, err := reference(e.helper.Image, "helper")
	if err != nil {
		return nil, err
	}
	p := newPod(id, e.holder.name, e.class)
	box := &p.Spec.Containers[0]
	box.Image, box.Resources = image, resources(s.Limits)
	helper, agent := e.helper.Path, s.Agent.Path
	if helperImage != image || agentImage != image {
		share := kubeapi.VolumeMount{Name: shareName, MountPath: sharePath}
		helper, agent = path.Join(sharePath, "pod"), path.Join(sharePath, "agent")
		p.Spec.Volumes = append(p.Spec.Volumes, kubeapi.Volume{Name: shareName, EmptyDir: &kubeapi.EmptyDir{SizeLimit: shareSize}})
		p.Spec.InitContainers = []kubeapi.Container{
			install("helper", helperImage, e.helper.Path, e.helper.Path, helper, box.Resources, share),
			install("agent", agentImage, helper, s.Agent.Path, agent, box.Resources, share),
		}
		box.VolumeMounts = append(box.VolumeMounts, kubeapi.VolumeMount{Name: shareName, MountPath: sharePath, ReadOnly: true})
	}
	box.Command = literal(append([]string{helper, "run", cmp.Or(s.Hostname, id), agent}, s.Agent.Args...))
	for i, m := range s.Mounts {
		if m.Volume == "" {
			return nil, unsupported("mount of the host path %q: Pods have volume claims only", m.Host)
		}
		if m.Frozen && !m.ReadOnly {
			return nil, unsupported("mount of the volume %q: a Pod cannot freeze it", m.Volume)
		}
		exists, err := e.api.ClaimExists(ctx, e.namespace, m.Volume)
		if err != nil {
			return nil, err
		}
		if !exists {
			return nil, fmt.Errorf("namespace %s has no volume claim %q; create it, or name one of: kubectl get pvc: %w", e.namespace, m.Volume, engine.ErrInvalid)
		}
		name := "volume-" + strconv.Itoa(i)
		p.Spec.Volumes = append(p.Spec.Volumes, kubeapi.Volume{Name: name, Claim: &kubeapi.Claim{ClaimName: m.Volume, ReadOnly: m.ReadOnly}})
		box.VolumeMounts = append(box.VolumeMounts, kubeapi.VolumeMount{Name: name, MountPath: m.Guest, ReadOnly: m.ReadOnly})
	}
	return p, nil
}

// reference returns the name of an image by its digest.
func reference(i *engine.Image, what string) (string, error) {
	if i == nil {
		return "", unsupported("%s of this host: Pods are made of images of a registry", what)
	}
	if i.Name == "" {
		return "", unsupported("%s image %s is in no registry", what, i.Digest)
	}
	return i.Name + "@" + i.Digest, nil
}

// literal keeps Kubernetes from replacing variables in a command.
func literal(argv []string) []string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = strings.ReplaceAll(a, "$", "$$")
	}
	return out
}

// newPod returns a Pod with one container that has only the rights of the helper: it runs
// as root to make the agent's namespaces, and has three capabilities. Kernels demand
// SETFCAP from a process that maps root into a new namespace.
func newPod(id, holder, class string) *kubeapi.Pod {
	nonce := make([]byte, 16)
	rand.Read(nonce) // never fails
	return &kubeapi.Pod{
		Metadata: kubeapi.Meta{
			Name:        podName(id),
			Labels:      map[string]string{managedLabel: managedBy, roleLabel: roleBox, holderLabel: holder},
			Annotations: map[string]string{idAnnotation: id, nonceAnnotation: hex.EncodeToString(nonce)},
		},
		Spec: kubeapi.PodSpec{
			RuntimeClassName:              class,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			RestartPolicy:                 "Never",
			TerminationGracePeriodSeconds: new(int64(graceSeconds)),
			DNSPolicy:                     "None", // nothing of the node's resolver; the agent answers there
			DNSConfig:                     &kubeapi.DNSConfig{Nameservers: []string{"127.77.0.1"}},
			Hostname:                      "box",
			SecurityContext: &kubeapi.PodSecurity{
				RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)),
				SeccompProfile: &kubeapi.Profile{Type: "RuntimeDefault"},
			},
			Containers: []kubeapi.Container{{Name: containerName, ImagePullPolicy: "IfNotPresent", SecurityContext: security("SETUID", "SETGID", "SETFCAP")}},
		},
	}
}

func security(add ...string) *kubeapi.ContainerSecurity {
	return &kubeapi.ContainerSecurity{
		AllowPrivilegeEscalation: new(false), Privileged: new(false),
		Capabilities: &kubeapi.Capabilities{Drop: []string{"ALL"}, Add: add},
	}
}

// install returns a container that copies a program into the shared volume.
func install(name, image, helper, source, target string, r kubeapi.Resources, share kubeapi.VolumeMount) kubeapi.Container {
	return kubeapi.Container{
		Name: "install-" + name, Image: image, ImagePullPolicy: "IfNotPresent",
		Command:   literal([]string{helper, "install", source, target}),
		Resources: r, SecurityContext: security(), VolumeMounts: []kubeapi.VolumeMount{share},
	}
}

// resources returns requests and limits, which are equal, so that a node never promises
// what it lacks.
func resources(l engine.Limits) kubeapi.Resources {
	q := make(kubeapi.StringMap)
	if l.CPUs > 0 {
		q["cpu"] = strconv.FormatInt(int64(math.Ceil(l.CPUs*1000)), 10) + "m"
	}
	if l.MemoryMB > 0 {
		q["memory"] = strconv.Itoa(l.MemoryMB) + "Mi"
	}
	if l.DiskMB > 0 {
		q["ephemeral-storage"] = strconv.Itoa(l.DiskMB) + "Mi"
	}
	if len(q) == 0 {
		return kubeapi.Resources{}
	}
	return kubeapi.Resources{Requests: q, Limits: q}
}

// denyAll is the policy that forbids boxes all network.
func denyAll() *kubeapi.NetworkPolicy {
	return &kubeapi.NetworkPolicy{
		Metadata: kubeapi.Meta{Name: "glovebox-boxes", Labels: map[string]string{managedLabel: managedBy}},
		Spec: kubeapi.NetworkPolicySpec{
			PodSelector: kubeapi.Selector{MatchLabels: kubeapi.StringMap{managedLabel: managedBy, roleLabel: roleBox}},
			PolicyTypes: []string{"Ingress", "Egress"},
		},
	}
}
