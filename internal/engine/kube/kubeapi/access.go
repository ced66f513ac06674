package kubeapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// Access is a request that a role may allow.
type Access struct {
	Group       string // of the API; "": the core
	Resource    string
	Subresource string
	Verb        string
}

// String describes the access as kubectl auth can-i takes it: "create pods/exec".
func (a Access) String() string {
	s := a.Verb + " " + a.Resource
	if a.Group != "" {
		s += "." + a.Group
	}
	if a.Subresource != "" {
		s += "/" + a.Subresource
	}
	return s
}

// Allowed reports whether these credentials have an access in a namespace, or in the whole
// cluster if namespace is "". Every authenticated user may ask that.
func (c *Client) Allowed(ctx context.Context, namespace string, a Access) (bool, error) {
	body := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": namespace, "group": a.Group, "resource": a.Resource, "subresource": a.Subresource, "verb": a.Verb,
		}},
	}
	var out struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	path := []string{"apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"}
	err := c.do(ctx, request{method: http.MethodPost, path: path, body: body}, &out)
	return out.Status.Allowed, err
}

// Quota is what a ResourceQuota allows and what is in use of it.
type Quota struct {
	Metadata Meta `json:"metadata"`
	Status   struct {
		Hard StringMap `json:"hard"`
		Used StringMap `json:"used"`
	} `json:"status"`
}

// ListQuotas returns the first resource quotas of a namespace.
func (c *Client) ListQuotas(ctx context.Context, namespace string) ([]Quota, error) {
	var out struct {
		Items []Quota `json:"items"`
	}
	path := []string{"api", "v1", "namespaces", namespace, "resourcequotas"}
	err := c.do(ctx, request{method: http.MethodGet, path: path, query: url.Values{"limit": {"20"}}}, &out)
	return out.Items, err
}

// ListRuntimeClasses returns the names of the first runtime classes.
func (c *Client) ListRuntimeClasses(ctx context.Context) ([]string, error) {
	var out struct {
		Items []struct {
			Metadata Meta `json:"metadata"`
		} `json:"items"`
	}
	path := strings.Split("apis/node.k8s.io/v1/runtimeclasses", "/")
	err := c.do(ctx, request{method: http.MethodGet, path: path, query: url.Values{"limit": {"20"}}}, &out)
	var names []string
	for _, i := range out.Items {
		names = append(names, line(i.Metadata.Name, 80))
	}
	return names, err
}
