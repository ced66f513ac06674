package kubeapi

import (
	"encoding/json"
	"time"
)

// Meta is the metadata of an object.
type Meta struct {
	Name              string            `json:"name,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Finalizers        []string          `json:"finalizers,omitempty"`
	// Owners are the objects that the object belongs to, unread.
	Owners []json.RawMessage `json:"ownerReferences,omitempty"`
}

// Status is the answer of a request without another one.
type Status struct {
	Kind    string `json:"kind"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
}

// Pod is a Pod.
type Pod struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"`
	Metadata   Meta      `json:"metadata"`
	Spec       PodSpec   `json:"spec"`
	Status     PodStatus `json:"status,omitzero"`

	// WholeSpec is Spec as the cluster sent it, with the fields that PodSpec lacks.
	WholeSpec json.RawMessage `json:"-"`
}

// UnmarshalJSON reads a Pod, and keeps the whole of its spec.
func (p *Pod) UnmarshalJSON(b []byte) error {
	type fields Pod // without this method
	if err := json.Unmarshal(b, (*fields)(p)); err != nil {
		return err
	}
	var whole struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(b, &whole); err != nil {
		return err
	}
	p.WholeSpec = whole.Spec
	return nil
}

// PodSpec is the desired state of a Pod.
type PodSpec struct {
	RuntimeClassName              string       `json:"runtimeClassName,omitempty"`
	AutomountServiceAccountToken  *bool        `json:"automountServiceAccountToken,omitempty"`
	EnableServiceLinks            *bool        `json:"enableServiceLinks,omitempty"`
	RestartPolicy                 string       `json:"restartPolicy,omitempty"`
	TerminationGracePeriodSeconds *int64       `json:"terminationGracePeriodSeconds,omitempty"`
	DNSPolicy                     string       `json:"dnsPolicy,omitempty"`
	DNSConfig                     *DNSConfig   `json:"dnsConfig,omitempty"`
	Hostname                      string       `json:"hostname,omitempty"`
	SecurityContext               *PodSecurity `json:"securityContext,omitempty"`
	InitContainers                []Container  `json:"initContainers,omitempty"`
	Containers                    []Container  `json:"containers"`
	Volumes                       []Volume     `json:"volumes,omitempty"`
}

// StringMap is a map of names to values.
type StringMap map[string]string

// DNSConfig replaces the resolver's configuration.
type DNSConfig struct {
	Nameservers []string `json:"nameservers,omitempty"`
}

// PodSecurity is the security context of a Pod.
type PodSecurity struct {
	RunAsUser      *int64   `json:"runAsUser,omitempty"`
	RunAsGroup     *int64   `json:"runAsGroup,omitempty"`
	SeccompProfile *Profile `json:"seccompProfile,omitempty"`
}

// Profile is a seccomp profile.
type Profile struct {
	Type string `json:"type"`
}

// Container is a container of a Pod.
type Container struct {
	Name            string             `json:"name"`
	Image           string             `json:"image"`
	ImagePullPolicy string             `json:"imagePullPolicy,omitempty"`
	Command         []string           `json:"command,omitempty"`
	Resources       Resources          `json:"resources,omitzero"`
	SecurityContext *ContainerSecurity `json:"securityContext,omitempty"`
	VolumeMounts    []VolumeMount      `json:"volumeMounts,omitempty"`
}

// Resources are the requests and limits of a container.
type Resources struct {
	Requests StringMap `json:"requests,omitempty"`
	Limits   StringMap `json:"limits,omitempty"`
}

// ContainerSecurity is the security context of a container.
type ContainerSecurity struct {
	AllowPrivilegeEscalation *bool         `json:"allowPrivilegeEscalation,omitempty"`
	Privileged               *bool         `json:"privileged,omitempty"`
	Capabilities             *Capabilities `json:"capabilities,omitempty"`
}

// Capabilities of a container, without the prefix CAP_.
type Capabilities struct {
	Add  []string `json:"add,omitempty"`
	Drop []string `json:"drop,omitempty"`
}

// VolumeMount makes a volume visible in a container.
type VolumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Volume is a volume of a Pod.
type Volume struct {
	Name     string    `json:"name"`
	EmptyDir *EmptyDir `json:"emptyDir,omitempty"`
	Claim    *Claim    `json:"persistentVolumeClaim,omitempty"`
}

// EmptyDir is a directory that ends with its Pod.
type EmptyDir struct {
	SizeLimit string `json:"sizeLimit,omitempty"`
}

// Claim is a persistent volume claim.
type Claim struct {
	ClaimName string `json:"claimName"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// PodStatus is what a Pod is.
type PodStatus struct {
	Phase          string            `json:"phase,omitempty"`
	Reason         string            `json:"reason,omitempty"`
	Message        string            `json:"message,omitempty"`
	Conditions     []Condition       `json:"conditions,omitempty"`
	InitContainers []ContainerStatus `json:"initContainerStatuses,omitempty"`
	Containers     []ContainerStatus `json:"containerStatuses,omitempty"`
}

// Condition is one aspect of a Pod's state.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// ContainerStatus is what a container is.
type ContainerStatus struct {
	Name  string         `json:"name"`
	State ContainerState `json:"state"`
}

// ContainerState has one of three states.
type ContainerState struct {
	Waiting    *Waiting    `json:"waiting,omitempty"`
	Running    *struct{}   `json:"running,omitempty"`
	Terminated *Terminated `json:"terminated,omitempty"`
}

// Waiting tells why a container does not run yet.
type Waiting struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Terminated tells why a container has ended.
type Terminated struct {
	ExitCode int    `json:"exitCode"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

// Lease says that its holder lives.
type Lease struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"`
	Metadata   Meta      `json:"metadata"`
	Spec       LeaseSpec `json:"spec"`
}

// LeaseSpec says who holds a Lease, and how long it counts without a renewal.
type LeaseSpec struct {
	Holder   string `json:"holderIdentity,omitempty"`
	Duration int    `json:"leaseDurationSeconds,omitempty"`
	Renewed  string `json:"renewTime,omitempty"` // RFC 3339 with microseconds
}

// NetworkPolicy restricts the network of Pods.
type NetworkPolicy struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   Meta              `json:"metadata"`
	Spec       NetworkPolicySpec `json:"spec"`
}

// NetworkPolicySpec without rules forbids what its types name.
type NetworkPolicySpec struct {
	PodSelector Selector `json:"podSelector"`
	PolicyTypes []string `json:"policyTypes"`
}

// Selector selects objects by their labels.
type Selector struct {
	MatchLabels StringMap `json:"matchLabels"`
}
