package kube

import (
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/remote"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// maxDetail bounds a text of the cluster in errors and exits.
const maxDetail = 500

func detail(s string) string { return visible.Line(truncate.Bytes(s, maxDetail)) }

// boxStatus returns the status of the box's container; nil if there is none yet.
func boxStatus(p *kubeapi.Pod) *kubeapi.ContainerStatus {
	for i := range p.Status.Containers {
		if p.Status.Containers[i].Name == containerName {
			return &p.Status.Containers[i]
		}
	}
	return nil
}

func isRunning(p *kubeapi.Pod) bool {
	s := boxStatus(p)
	return p.Metadata.DeletionTimestamp == nil && s != nil && s.State.Running != nil
}

// isReady reports whether the Pod runs on a node that answers.
func isReady(p *kubeapi.Pod) bool {
	return isRunning(p) && slices.ContainsFunc(p.Status.Conditions, func(c kubeapi.Condition) bool { return c.Type == "Ready" && c.Status == "True" })
}

// exitOf reports whether the Pod has ended, and why.
func exitOf(p *kubeapi.Pod) (engine.Exit, bool) {
	s := boxStatus(p)
	if s != nil && s.State.Terminated != nil {
		return exitOfContainer(p, s.State.Terminated), true
	}
	if p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
		return engine.Exit{}, false
	}
	return engine.Exit{Reason: engine.ExitCrashed, Detail: whyEnded(p.Status.Reason)}, true
}

// reasonWord is a reason as Kubernetes writes them.
var reasonWord = lazyregexp.New(`^[A-Z][A-Za-z]{0,40}$`)

// whyEnded says why a Pod has ended, in our own words: clients see them, and a message of the
// cluster may name nodes, and what runs beside the box. endedAs has that for the log.
func whyEnded(reason string) string {
	switch {
	case reason == "Evicted":
		return "its node evicted it, which was short of a resource, or it used more disk than its limit"
	case reason == "NodeLost":
		return "its node was lost"
	case reason == "Shutdown", reason == "NodeShutdown", reason == "Terminated":
		return "its node shut down"
	case reason == "Preempting", reason == "Preempted":
		return "it made room for another Pod"
	case reasonWord().MatchString(reason):
		return "the cluster gives the reason " + reason
	}
	return ""
}

// endedAs returns what the cluster says about the end of a Pod, for the operator.
func endedAs(p *kubeapi.Pod) string {
	said := p.Status.Reason + " " + p.Status.Message
	if s := boxStatus(p); s != nil && s.State.Terminated != nil {
		said += " " + s.State.Terminated.Reason + " " + s.State.Terminated.Message
	}
	return detail(strings.TrimSpace(said))
}

func exitOfContainer(p *kubeapi.Pod, t *kubeapi.Terminated) engine.Exit {
	message, err := remote.ParseTermination([]byte(t.Message))
	parsed := err == nil
	switch {
	case t.Reason == "OOMKilled":
		return engine.Exit{Reason: engine.ExitOOM}
	case p.Status.Reason == "Evicted" || p.Status.Reason == "NodeLost" || p.Status.Reason == "Shutdown":
		return engine.Exit{Reason: engine.ExitCrashed, Detail: whyEnded(p.Status.Reason)}
	case parsed && message.Exited != nil:
		return engine.Exit{Reason: engine.ExitExited, Code: *message.Exited}
	case parsed && message.Stopped:
		return engine.Exit{Reason: engine.ExitDestroyed, Detail: "the Pod was told to end"}
	case parsed && message.Error != "":
		return engine.Exit{Reason: engine.ExitCrashed, Code: t.ExitCode, Detail: detail(message.Error)}
	}
	return engine.Exit{Reason: engine.ExitCrashed, Detail: whyEnded(t.Reason)}
}

// failureOf returns why a Pod cannot start, nil if it may still start.
func failureOf(p *kubeapi.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" && c.Reason == "Unschedulable" {
			sentinel := engine.ErrUnavailable
			if exhausted(c.Message) {
				sentinel = engine.ErrExhausted
			}
			return fmt.Errorf("no node takes the Pod: %s: %w", detail(c.Message), sentinel)
		}
	}
	for _, list := range [][]kubeapi.ContainerStatus{p.Status.InitContainers, p.Status.Containers} {
		for _, s := range list {
			if err := containerFailure(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// containerFailure returns why a container cannot start. Other reasons to wait pass.
func containerFailure(s kubeapi.ContainerStatus) error {
	if t := s.State.Terminated; t != nil && t.ExitCode != 0 && s.Name != containerName {
		return fmt.Errorf("container %s has failed: %s: %w", detail(s.Name), detail(t.Reason+" "+t.Message), engine.ErrUnavailable)
	}
	w := s.State.Waiting
	if w == nil {
		return nil
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable":
		return fmt.Errorf("the node cannot get an image: %s; check its name and the node's access to the registry: %w", detail(w.Message), engine.ErrUnavailable)
	case "InvalidImageName", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "ImageInspectError":
		return fmt.Errorf("the node cannot start the container: %s %s: %w", detail(w.Reason), detail(w.Message), engine.ErrInvalid)
	}
	return nil
}

// exhausted reports whether a message says that a quota or the nodes are full.
func exhausted(message string) bool {
	return strings.Contains(message, "exceeded quota") || strings.Contains(message, "Insufficient ")
}
