package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
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
	body := map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace,
		"preconditions": map[string]string{"uid": uid},
	}
	return c.do(ctx, request{method: http.MethodDelete, path: pods(namespace, name), body: body}, nil)
}

// PatchPod merges a patch into a Pod.
func (c *Client) PatchPod(ctx context.Context, namespace, name string, patch any) error {
	return c.do(ctx, request{method: http.MethodPatch, path: pods(namespace, name), body: patch, as: "application/merge-patch+json"}, nil)
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

// EnsureNetworkPolicy creates a policy unless there is one with its name.
func (c *Client) EnsureNetworkPolicy(ctx context.Context, namespace string, p *NetworkPolicy) error {
	err := c.do(ctx, request{method: http.MethodGet, path: policies(namespace, p.Metadata.Name)}, nil)
	if Code(err) != http.StatusNotFound {
		return err
	}
	p.APIVersion, p.Kind = "networking.k8s.io/v1", "NetworkPolicy"
	err = c.do(ctx, request{method: http.MethodPost, path: policies(namespace), body: p}, nil)
	if Code(err) == http.StatusConflict { // another replica was faster
		return nil
	}
	return err
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
