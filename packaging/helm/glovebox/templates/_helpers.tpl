{{- define "glovebox.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "glovebox" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-glovebox" (.Release.Name | trunc 41 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "glovebox.selector" -}}
app.kubernetes.io/name: glovebox
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "glovebox.labels" -}}
{{ include "glovebox.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "glovebox.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "glovebox.fullname" .) -}}
{{- end -}}

{{- define "glovebox.clusterRole" -}}
{{- .Values.rbac.clusterRoleName | default (include "glovebox.fullname" .) -}}
{{- end -}}

{{- define "glovebox.boxNamespace" -}}
{{- .Values.boxes.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "glovebox.tls" -}}
{{- if .Values.tls.existingSecret }}true{{ end -}}
{{- end -}}

{{/* Fails with what to do next, where values are missing or contradict each other. */}}
{{- define "glovebox.check" -}}
{{- $v := .Values -}}
{{- $byDigest := "^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$" -}}
{{- if not $v.image.repository -}}
{{- fail "\n\nimage.repository is empty: it names the server's image.\nMake one from Glovebox's source: scripts/kube/image server registry.example/team/glovebox server.tar\nThat prints the name and the digest; push it with: skopeo copy --preserve-digests oci-archive:server.tar docker://registry.example/team/glovebox:latest\n" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z0-9][a-z0-9._/:-]*[a-z0-9]$" $v.image.repository) -}}
{{- fail (printf "\n\nimage.repository %q is no repository without a digest: write the digest into image.digest.\n" $v.image.repository) -}}
{{- end -}}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" $v.image.digest) -}}
{{- fail (printf "\n\nimage.digest is %q, want sha256: and 64 hexadecimal digits, so that every replica runs the same program.\nPrint it with: crane digest %s:latest\n" $v.image.digest $v.image.repository) -}}
{{- end -}}
{{- if not (regexMatch $byDigest $v.boxes.image) -}}
{{- fail (printf "\n\nboxes.image is %q, want the image of boxes as NAME@sha256:DIGEST.\nPrint the digest with, for example: crane digest python:3.13-slim\n" $v.boxes.image) -}}
{{- end -}}
{{- if and $v.boxes.imageHasHelper $v.boxes.helperImage -}}
{{- fail "\n\nboxes.helperImage and boxes.imageHasHelper exclude each other: leave boxes.helperImage empty if the box image has the programs.\n" -}}
{{- end -}}
{{- if not (or $v.boxes.imageHasHelper (regexMatch $byDigest $v.boxes.helperImage)) -}}
{{- fail (printf "\n\nboxes.helperImage is %q, want the image with the agent and its helper as NAME@sha256:DIGEST.\nMake one from the source of the server's version: scripts/kube/image helper registry.example/team/glovebox-helper helper.tar\nIf boxes.image has the programs in /glovebox, set boxes.imageHasHelper=true instead.\n" $v.boxes.helperImage) -}}
{{- end -}}
{{- if not (or $v.tokens.existingSecret $v.config.GLOVEBOX_OIDC_ISSUER) -}}
{{- fail (printf "\n\nno access tokens: without them, everybody who reaches the Service could run code.\nMake a Secret with a token, which is printed once, and name it:\n  glovebox token new --name alice --tokens-file tokens.toml\n  kubectl --namespace %s create secret generic glovebox-tokens --from-file=tokens.toml\n  --set tokens.existingSecret=glovebox-tokens\nOr accept the tokens of an OpenID Connect issuer: --set config.GLOVEBOX_OIDC_ISSUER=https://login.example.org/realm\n" .Release.Namespace) -}}
{{- end -}}
{{- if and $v.tls.existingSecret $v.tls.behindProxy -}}
{{- fail "\n\ntls.existingSecret and tls.behindProxy exclude each other: either the server terminates TLS, or a proxy does.\n" -}}
{{- end -}}
{{- if not (or $v.tls.existingSecret $v.tls.behindProxy) -}}
{{- fail "\n\nno TLS: tokens would cross the network in clear text.\nName a Secret of the type kubernetes.io/tls: --set tls.existingSecret=NAME\nOr, if an Ingress or another proxy terminates TLS: --set tls.behindProxy=true\n" -}}
{{- end -}}
{{- range $name, $value := $v.config -}}
{{- if has $name (list "GLOVEBOX_ENGINE" "GLOVEBOX_IMAGE" "GLOVEBOX_KUBE_HELPER_IMAGE" "GLOVEBOX_KUBE_NAMESPACE" "GLOVEBOX_KUBE_RUNTIME_CLASS" "GLOVEBOX_KUBE_WARM" "GLOVEBOX_KUBE_PEER_ADDRESS" "GLOVEBOX_KUBE_CONTEXT" "GLOVEBOX_STATE_DIR" "GLOVEBOX_TOKENS_FILE" "GLOVEBOX_TLS_CERT" "GLOVEBOX_TLS_KEY" "GLOVEBOX_BEHIND_PROXY" "GLOVEBOX_DRAIN_TIMEOUT" "GLOVEBOX_INSECURE_BIND" "GLOVEBOX_CONFIG" "MCP_MODE" "MCP_SERVER_HOST" "MCP_HOST" "MCP_SERVER_PORT" "MCP_PORT") -}}
{{- fail (printf "\n\nconfig.%s: the chart sets this variable itself, from the other values; remove it.\n" $name) -}}
{{- end -}}
{{- if or (has $name (list "PERPLEXITY_API_KEY" "PERPLEXITY_BEARER_TOKEN" "MSB_API_KEY")) (contains "SECRET" $name) (contains "_HEADERS" $name) -}}
{{- fail (printf "\n\nconfig.%s: a value may be a secret, and everybody who may read the Deployment would see it.\nPut it into a Secret, name that in mounts.secrets, and set the variable for a file, such as PERPLEXITY_API_KEY_FILE=/etc/glovebox/secrets/NAME/KEY.\n" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.serviceAccount.create) (not $v.serviceAccount.name) -}}
{{- fail "\n\nserviceAccount.create is false, and serviceAccount.name is empty: name an existing service account.\n" -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- if not (or $v.autoscaling.cpuPercent $v.autoscaling.calls.average) -}}
{{- fail "\n\nautoscaling has no target: set autoscaling.cpuPercent or autoscaling.calls.average.\n" -}}
{{- end -}}
{{- if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) -}}
{{- fail "\n\nautoscaling.minReplicas is larger than autoscaling.maxReplicas.\n" -}}
{{- end -}}
{{- if and $v.autoscaling.cpuPercent (not (dig "requests" "cpu" "" $v.resources)) -}}
{{- fail "\n\nautoscaling.cpuPercent is a part of resources.requests.cpu, which is missing.\n" -}}
{{- end -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (not $v.serviceMonitor.tokenSecret) -}}
{{- fail "\n\nserviceMonitor.tokenSecret is empty: /metrics needs a token of the scope metrics.\nMake one, and a Secret of what it prints:\n  glovebox token new --name prometheus --scope metrics --tokens-file tokens.toml\n" -}}
{{- end -}}
{{- if eq (index $v.podLabels "app.kubernetes.io/managed-by" | default "") "glovebox" -}}
{{- fail "\n\npodLabels: app.kubernetes.io/managed-by=glovebox marks boxes, which kubectl delete pod -l removes; choose another label.\n" -}}
{{- end -}}
{{- end -}}
