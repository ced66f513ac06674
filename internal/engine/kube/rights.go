package kube

import "github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"

// A right is what the engine asks of the cluster, as packaging/kube/rbac.yaml grants it.
type right struct {
	kubeapi.Access
	// clusterWide rights are of no namespace.
	clusterWide bool
	// without says which part works without the right; "": none does.
	without string
}

// rights are all that the engine needs. A test compares them with the manifest, and
// another one shows on a cluster that each of them is needed.
func rights() []right {
	var list []right
	add := func(r right, verbs ...string) {
		for _, v := range verbs {
			r.Verb = v
			list = append(list, r)
		}
	}
	add(right{Access: kubeapi.Access{Resource: "pods"}}, "create", "delete", "get", "list", "patch", "watch")
	add(right{Access: kubeapi.Access{Resource: "pods", Subresource: "exec"}}, "create", "get")
	add(right{Access: kubeapi.Access{Group: "coordination.k8s.io", Resource: "leases"}}, "create", "delete", "get", "patch")
	add(right{
		Access:  kubeapi.Access{Group: "networking.k8s.io", Resource: "networkpolicies"},
		without: "boxes work without it, but no policy denies the helpers beside them the network",
	}, "create", "get")
	add(right{Access: kubeapi.Access{Group: "node.k8s.io", Resource: "runtimeclasses"}, clusterWide: true}, "get")
	return list
}
