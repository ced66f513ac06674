package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
)

func anyText(v any) bool { _, ok := v.(string); return ok }
func anything(any) bool  { return true }
func exactly(want any) func(any) bool {
	return func(v any) bool { return reflect.DeepEqual(v, want) }
}

// filledIn are the fields that API servers, admission and schedulers set in Pods that leave
// them out, and the values that are harmless: none gives the Pod more than it asked for.
// Elements of lists have the path of the list with [].
var filledIn = func() map[string]func(any) bool {
	m := map[string]func(any) bool{
		"nodeName": anyText, "schedulerName": anyText, "priority": anything, "priorityClassName": anyText, "preemptionPolicy": anyText,
		"serviceAccount": anyText, "serviceAccountName": anyText, // without a token
		"nodeSelector": anything, "tolerations": anything, "overhead": anything, // of the runtime class
		"imagePullSecrets": anything, // images have digests
	}
	for _, list := range []string{"containers[]", "initContainers[]"} {
		m[list+".terminationMessagePath"] = exactly("/dev/termination-log")
		m[list+".terminationMessagePolicy"] = exactly("File")
		m[list+".resources"] = exactly(map[string]any{})
		m[list+".securityContext.procMount"] = exactly("Default")
	}
	return m
}()

// allowedAnnotations are those in which networks report what they have done. Others ask
// them, or the node, for something: an address of another Pod, another network.
var allowedAnnotations = map[string]bool{
	nonceAnnotation:                     true,
	"cni.projectcalico.org/containerID": true, "cni.projectcalico.org/podIP": true, "cni.projectcalico.org/podIPs": true,
	"k8s.v1.cni.cncf.io/network-status": true, "k8s.v1.cni.cncf.io/networks-status": true,
	"k8s.ovn.org/pod-networks": true, // of every Pod where OVN is the network
}

// allowedLabels are the labels of a warm Pod. Any other one may bring it under a policy or
// a Service that is not meant for boxes.
var allowedLabels = map[string]bool{
	managedLabel: true, roleLabel: true, warmLabel: true, specLabel: true, makerLabel: true,
	"topology.kubernetes.io/zone": true, "topology.kubernetes.io/region": true, // API servers copy them from the node
}

// checkPod returns an error unless a Pod of the cluster is what want says in each of its
// fields, apart from what clusters fill in. Anyone who can create Pods
// in the namespace can set labels and annotations.
func checkPod(want *kubeapi.PodSpec, p *kubeapi.Pod) error {
	if len(p.Metadata.Owners) > 0 || len(p.Metadata.Finalizers) > 0 {
		return errors.New("another object or controller holds it")
	}
	for key := range p.Metadata.Annotations {
		if !allowedAnnotations[key] {
			return fmt.Errorf("it has the annotation %q", detail(key))
		}
	}
	for key := range p.Metadata.Labels {
		if !allowedLabels[key] {
			return fmt.Errorf("it has the label %q", detail(key))
		}
	}
	b, err := json.Marshal(want)
	var wanted, found any
	if err == nil {
		err = json.Unmarshal(b, &wanted)
	}
	if err == nil {
		err = json.Unmarshal(p.WholeSpec, &found)
	}
	if err != nil {
		return fmt.Errorf("read its spec: %w", err)
	}
	return sameField("", wanted, found)
}

// sameField compares a field as wanted with the one of the cluster. It descends no deeper
// than what is wanted.
func sameField(path string, want, got any) error {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not an object", path)
		}
		return sameObject(path, want, got)
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return fmt.Errorf("%s does not have %d elements", path, len(want))
		}
		for i := range want {
			if err := sameField(path+"[]", want[i], got[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if want == got || strings.Contains(path, ".resources.") && sameQuantity(want, got) {
		return nil
	}
	return fmt.Errorf("%s is %s, not %v", path, detail(fmt.Sprint(got)), want)
}

func sameObject(path string, want, got map[string]any) error {
	below := func(key string) string {
		if path == "" {
			return key
		}
		return path + "." + key
	}
	for key := range want {
		if err := sameField(below(key), want[key], got[key]); err != nil {
			return err
		}
	}
	for key, v := range got {
		if _, wanted := want[key]; wanted {
			continue
		}
		if harmless := filledIn[below(key)]; harmless == nil || !harmless(v) {
			return fmt.Errorf("it has the field %s", detail(below(key)))
		}
	}
	return nil
}

// sameQuantity reports whether two quantities are equal: clusters store 1000m as 1.
func sameQuantity(a, b any) bool {
	x, xOK := quantity(a)
	y, yOK := quantity(b)
	return xOK && yOK && x == y
}

// units are the suffixes of quantities, in thousandths.
var units = map[string]int64{
	"m": 1, "": 1000, "k": 1e6, "M": 1e9, "G": 1e12,
	"Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30,
}

// quantity returns a quantity without a fraction in thousandths.
func quantity(v any) (int64, bool) {
	s, _ := v.(string)
	digits := strings.TrimRight(s, "mkMGi"+"K")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, ok := units[s[len(digits):]]
	if err != nil || !ok || n < 0 || n > (1<<62)/unit {
		return 0, false
	}
	return n * unit, true
}
