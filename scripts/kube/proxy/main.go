// Command kube-proxy is that of Kubernetes, of the version of the node beside it, for
// tests that use Services.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() { os.Exit(cli.Run(app.NewProxyCommand())) }
