// Package kube is the engine whose boxes are Pods of a Kubernetes cluster.
//
// A Pod has one container, of the box's image. Its first process is the helper of
// internal/guest/pod, which runs the agent in namespaces of its own: without the Pod's
// network, whatever the cluster does with network policies. The engine reaches the helper
// by executing it again in the container, through the cluster's API, and
// internal/guest/podlink makes one stream of the connections that break, for example when
// the API server restarts.
//
// The cluster is the only state: a Pod's labels, annotations and UID are all that another
// replica needs to List and Recover it, and replicas may share a Pod. Each Engine has a
// Lease; Pods of holders that no longer renew theirs are removed after Config.OrphanAfter.
//
// Limits are those of the Pod. The engine has no snapshots, pauses or statistics.
package kube
