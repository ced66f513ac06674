package kubesim

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// object is one version of an object. It does not change, so that lists, watches and the
// history share it.
type object struct {
	name, uid string
	version   uint64
	labels    map[string]string
	deleting  bool
	bound     bool // to a node
	ready     bool
	raw       []byte // JSON
}

// child returns the object below a key, which it makes if it is missing.
func child(of map[string]any, key string) map[string]any {
	m, ok := of[key].(map[string]any)
	if !ok {
		m = make(map[string]any)
		of[key] = m
	}
	return m
}

// decode returns the fields of an object, for a change.
func (o *object) decode() map[string]any {
	var m map[string]any
	if err := json.Unmarshal(o.raw, &m); err != nil {
		panic(err) // encode has written it
	}
	return m
}

// encode makes a version of an object.
func encode(fields map[string]any, version uint64) *object {
	meta := child(fields, "metadata")
	meta["resourceVersion"] = strconv.FormatUint(version, 10)
	raw, err := json.Marshal(fields)
	if err != nil {
		panic(err) // it was JSON before
	}
	o := &object{version: version, labels: make(map[string]string), raw: raw}
	o.name, _ = meta["name"].(string)
	o.uid, _ = meta["uid"].(string)
	_, o.deleting = meta["deletionTimestamp"]
	labels, _ := meta["labels"].(map[string]any)
	for k, v := range labels {
		o.labels[k], _ = v.(string)
	}
	spec, _ := fields["spec"].(map[string]any)
	_, o.bound = spec["nodeName"]
	status, _ := fields["status"].(map[string]any)
	o.ready = status["phase"] == "Running"
	return o
}

// merge applies a merge patch (RFC 7396).
func merge(into, patch map[string]any) {
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, k)
		case map[string]any:
			merge(child(into, k), v)
		default:
			into[k] = v
		}
	}
}

func timestamp() string { return time.Now().UTC().Format(time.RFC3339) }

// complete fills in what a cluster does in a new object.
func complete(resource, user string, fields map[string]any, uid uint64) {
	meta := child(fields, "metadata")
	meta["uid"] = fmt.Sprintf("%08x-51e0-4b0c-9d00-%012x", uid>>16, uid)
	meta["namespace"], meta["creationTimestamp"] = Namespace, timestamp()
	managed := map[string]any{"f:metadata": fieldsOf(map[string]any{"labels": meta["labels"], "annotations": meta["annotations"]}), "f:spec": fieldsOf(fields["spec"])}
	meta["managedFields"] = []any{managedBy(user, "", managed)}
	if resource != pods {
		return
	}
	meta["generation"] = 1
	spec := child(fields, "spec")
	maps.Copy(spec, map[string]any{
		"schedulerName": "default-scheduler", "serviceAccountName": "default", "serviceAccount": "default", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
		"tolerations": []any{
			map[string]any{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
			map[string]any{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
		},
	})
	for _, c := range containers(spec) {
		c["terminationMessagePath"], c["terminationMessagePolicy"] = "/dev/termination-log", "File"
	}
	fields["status"] = map[string]any{"phase": "Pending", "qosClass": "Guaranteed"}
}

// containers returns the containers of a Pod's spec, those that run first included.
func containers(spec map[string]any) (all []map[string]any) {
	for _, list := range []string{"initContainers", "containers"} {
		elements, _ := spec[list].([]any)
		for _, c := range elements {
			if c, ok := c.(map[string]any); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

// managedBy is what a cluster notes about the fields that somebody has set. It is a third of
// a Pod's bytes.
func managedBy(who, subresource string, fields map[string]any) map[string]any {
	m := map[string]any{"manager": who, "operation": "Update", "apiVersion": "v1", "time": timestamp(), "fieldsType": "FieldsV1", "fieldsV1": fields}
	if subresource != "" {
		m["subresource"] = subresource
	}
	return m
}

// fieldsOf returns the names of the fields of a value in the form of FieldsV1.
func fieldsOf(v any) map[string]any {
	set := make(map[string]any)
	switch v := v.(type) {
	case map[string]any:
		for k, below := range v {
			set["f:"+k] = fieldsOf(below)
		}
	case []any:
		for _, element := range v {
			m, _ := element.(map[string]any)
			for _, key := range []string{"name", "type"} { // those by which lists are merged
				if name, ok := m[key].(string); ok {
					set[fmt.Sprintf(`k:{"%s":"%s"}`, key, name)] = fieldsOf(m)
					break
				}
			}
		}
	}
	return set
}

// bind puts a Pod on a node.
func bind(fields map[string]any) {
	child(fields, "spec")["nodeName"] = "node-1.pool-a.example.internal"
	child(fields, "status")["conditions"] = []any{condition("PodScheduled", true)}
}

func condition(kind string, holds bool) map[string]any {
	text := "False"
	if holds {
		text = "True"
	}
	return map[string]any{"type": kind, "status": text, "lastProbeTime": nil, "lastTransitionTime": timestamp(), "observedGeneration": 1}
}

// report sets the status that a kubelet reports of a Pod.
func report(fields map[string]any, phase string, state map[string]any) {
	ready := phase == "Running"
	status := child(fields, "status")
	status["phase"] = phase
	var conditions, initial, main []any
	for _, kind := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"} {
		conditions = append(conditions, condition(kind, ready))
	}
	status["conditions"] = append(conditions, condition("PodScheduled", true))
	status["hostIP"], status["hostIPs"] = "10.128.0.17", []any{map[string]any{"ip": "10.128.0.17"}}
	status["podIP"], status["podIPs"] = "10.4.17.201", []any{map[string]any{"ip": "10.4.17.201"}}
	status["startTime"], status["observedGeneration"] = timestamp(), 1
	for _, c := range containers(child(fields, "spec")) {
		s := map[string]any{
			"name": c["name"], "image": c["image"], "imageID": c["image"], "lastState": map[string]any{}, "restartCount": 0, "ready": ready, "started": ready,
			"containerID": "containerd://6f1c9c1f5f0f4dbb8c9bb0a5f3a2d41ef8b54e0c1f1f64d6a3f1c2b7a9d0e5c3", "resources": c["resources"],
		}
		if c["name"] != "box" { // of the containers before it
			s["state"] = map[string]any{"terminated": map[string]any{"exitCode": 0, "reason": "Completed", "startedAt": timestamp(), "finishedAt": timestamp()}}
			initial = append(initial, s)
			continue
		}
		s["state"] = state
		main = append(main, s)
	}
	status["containerStatuses"] = main
	if initial != nil {
		status["initContainerStatuses"] = initial
	}
	meta := child(fields, "metadata")
	managed, _ := meta["managedFields"].([]any)
	meta["managedFields"] = append(managed[:1:1], managedBy("kubelet", "status", map[string]any{"f:status": fieldsOf(status)}))
}
