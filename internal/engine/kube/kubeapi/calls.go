package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// pageSize bounds the objects of one answer of a list.
const pageSize = 250

// maxPages bounds a list: 100,000 objects.
const maxPages = 400

func pods(namespace string, name ...string) []string {
	return append([]string{"api", "v1", "namespaces", namespace, "pods"}, name...)
}

// Version returns the version of the cluster.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"gitVersion"`
	}
	err := c.do(ctx, request{method: http.MethodGet, path: []string{"version"}}, &v)
	return line(v.Version, 40), err
}

// CreatePod creates a Pod and returns it as stored.
func (c *Client) CreatePod(ctx context.Context, namespace string, p *Pod) (*Pod, error) {
	p.APIVersion, p.Kind = "v1", "Pod"
	out := new(Pod)
	return out, c.do(ctx, request{method: http.MethodPost, path: pods(namespace), body: p}, out)
}

// GetPod returns a Pod.
func (c *Client) GetPod(ctx context.Context, namespace, name string) (*Pod, error) {
	out := new(Pod)
	return out, c.do(ctx, request{method: http.MethodGet, path: pods(namespace, name)}, out)
}

// DeletePod tells the Pod with the UID to end within a number of seconds. The Pod is gone
// when the node has freed what it held.
func (c *Client) DeletePod(ctx context.Context, namespace, name, uid string, grace int64) error {
	return c.deletePod(ctx, namespace, name, grace, map[string]string{"uid": uid})
}

// DeletePodAt is DeletePod for a Pod that has not changed since it was read: otherwise the
// cluster answers 409.
func (c *Client) DeletePodAt(ctx context.Context, namespace string, p *Pod, grace int64) error {
	return c.deletePod(ctx, namespace, p.Metadata.Name, grace, map[string]string{"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion})
}

func (c *Client) deletePod(ctx context.Context, namespace, name string, grace int64, only map[string]string) error {
	body := map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace, "preconditions": only,
	}
	return c.do(ctx, request{method: http.MethodDelete, path: pods(namespace, name), body: body}, nil)
}

// PatchPod merges a patch into a Pod and returns it as stored. A patch with
// metadata.resourceVersion is refused with 409 if the Pod has changed since.
func (c *Client) PatchPod(ctx context.Context, namespace, name string, patch any) (*Pod, error) {
	out := new(Pod)
	return out, c.do(ctx, request{method: http.MethodPatch, path: pods(namespace, name), body: patch, as: "application/merge-patch+json"}, out)
}

// ListPods calls each for the Pods with the labels, page by page, and returns the version
// at which a watch continues.
func (c *Client) ListPods(ctx context.Context, namespace, selector string, each func(*Pod)) (version string, err error) {
	query := url.Values{"labelSelector": {selector}, "limit": {strconv.Itoa(pageSize)}}
	for range maxPages {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []Pod `json:"items"`
		}
		if err := c.do(ctx, request{method: http.MethodGet, path: pods(namespace), query: query}, &page); err != nil {
			return "", err
		}
		for i := range page.Items {
			each(&page.Items[i])
		}
		if page.Metadata.Continue == "" {
			return page.Metadata.ResourceVersion, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
	return "", fmt.Errorf("list Pods of namespace %s: more than %d", namespace, maxPages*pageSize)
}

// exists reports whether the cluster has the object with a path.
func (c *Client) exists(ctx context.Context, path ...string) (bool, error) {
	err := c.do(ctx, request{method: http.MethodGet, path: path}, nil)
	if Code(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// ClaimExists reports whether the namespace has a volume claim.
func (c *Client) ClaimExists(ctx context.Context, namespace, name string) (bool, error) {
	return c.exists(ctx, "api", "v1", "namespaces", namespace, "persistentvolumeclaims", name)
}

// RuntimeClassExists reports whether the cluster has a runtime class.
func (c *Client) RuntimeClassExists(ctx context.Context, name string) (bool, error) {
	return c.exists(ctx, "apis", "node.k8s.io", "v1", "runtimeclasses", name)
}

func policies(namespace string, name ...string) []string {
	return append([]string{"apis", "networking.k8s.io", "v1", "namespaces", namespace, "networkpolicies"}, name...)
}

// ErrOtherPolicy means that a namespace has another policy of that name.
var ErrOtherPolicy = errors.New("the policy allows traffic that boxes must not have")

// EnsureNetworkPolicy creates a policy without rules, unless there is one with its name that
// forbids as much. It returns ErrOtherPolicy, wrapped, if the one that there is does not.
func (c *Client) EnsureNetworkPolicy(ctx context.Context, namespace string, p *NetworkPolicy) error {
	err := c.checkNetworkPolicy(ctx, namespace, p)
	if Code(err) != http.StatusNotFound {
		return err
	}
	p.APIVersion, p.Kind = "networking.k8s.io/v1", "NetworkPolicy"
	err = c.do(ctx, request{method: http.MethodPost, path: policies(namespace), body: p}, nil)
	if Code(err) == http.StatusConflict { // somebody was faster, such as another replica
		return c.checkNetworkPolicy(ctx, namespace, p)
	}
	return err
}

// checkNetworkPolicy compares the policy of the namespace with one without rules.
func (c *Client) checkNetworkPolicy(ctx context.Context, namespace string, want *NetworkPolicy) error {
	var found struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := c.do(ctx, request{method: http.MethodGet, path: policies(namespace, want.Metadata.Name)}, &found); err != nil {
		return err
	}
	if why := narrower(found.Spec, &want.Spec); why != "" {
		return fmt.Errorf("network policy %s of namespace %s: %s: %w", want.Metadata.Name, namespace, why, ErrOtherPolicy)
	}
	return nil
}

// narrower says in what way a policy forbids less than one without rules; "": in none.
func narrower(spec json.RawMessage, want *NetworkPolicySpec) string {
	var s struct {
		PodSelector struct {
			MatchLabels StringMap         `json:"matchLabels"`
			Expressions []json.RawMessage `json:"matchExpressions"`
		} `json:"podSelector"`
		PolicyTypes []string          `json:"policyTypes"`
		Ingress     []json.RawMessage `json:"ingress"`
		Egress      []json.RawMessage `json:"egress"`
	}
	d := json.NewDecoder(bytes.NewReader(spec))
	d.DisallowUnknownFields() // a field of the future may allow something
	if err := d.Decode(&s); err != nil {
		return line("its spec is not understood: "+err.Error(), 200)
	}
	// Fewer labels select more Pods.
	for name, value := range s.PodSelector.MatchLabels {
		if wanted, ok := want.PodSelector.MatchLabels[name]; !ok || wanted != value {
			return "it does not select all Pods of boxes"
		}
	}
	if len(s.PodSelector.Expressions) > 0 {
		return "it does not select all Pods of boxes"
	}
	if len(s.Ingress)+len(s.Egress) > 0 {
		return "it has rules that allow traffic"
	}
	for _, kind := range want.PolicyTypes {
		if !slices.Contains(s.PolicyTypes, kind) {
			return "it does not forbid " + kind
		}
	}
	return ""
}

func leases(namespace string, name ...string) []string {
	return append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"}, name...)
}

// CreateLease creates a Lease.
func (c *Client) CreateLease(ctx context.Context, namespace string, l *Lease) error {
	l.APIVersion, l.Kind = "coordination.k8s.io/v1", "Lease"
	return c.do(ctx, request{method: http.MethodPost, path: leases(namespace), body: l}, nil)
}

// GetLease returns a Lease.
func (c *Client) GetLease(ctx context.Context, namespace, name string) (*Lease, error) {
	out := new(Lease)
	return out, c.do(ctx, request{method: http.MethodGet, path: leases(namespace, name)}, out)
}

// PatchLease merges a patch into a Lease.
func (c *Client) PatchLease(ctx context.Context, namespace, name string, patch any) error {
	return c.do(ctx, request{method: http.MethodPatch, path: leases(namespace, name), body: patch, as: "application/merge-patch+json"}, nil)
}

// DeleteLease deletes a Lease.
func (c *Client) DeleteLease(ctx context.Context, namespace, name string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: leases(namespace, name)}, nil)
}
