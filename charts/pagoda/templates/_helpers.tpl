{{- define "pagoda.labels" -}}
app.kubernetes.io/name: pagoda
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "pagoda.selector" -}}
app.kubernetes.io/name: pagoda
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* An image as nodes pull it: global.imageRegistry stands before one that names no registry. Called with root and image. */}}
{{- define "pagoda.image" -}}
{{- $registry := .root.Values.global.imageRegistry | default "" | trimSuffix "/" }}
{{- $first := splitList "/" .image | first }}
{{- $named := and (contains "/" .image) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) }}
{{- if or $named (not $registry) }}{{ .image }}{{ else }}{{ printf "%s/%s" $registry .image }}{{ end }}
{{- end }}

{{- /* The spec of a pod of ours without its account, containers and volumes. Called with root, component, pod and grace. A value of `pod`
replaces ours of the same name; Helm has merged its maps, such as securityContext, with those of values.yaml. */}}
{{- define "pagoda.pod" -}}
{{- $apart := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
{{- $_ := set $apart "labelSelector" (dict "matchLabels" (include "pagoda.selector" . | fromYaml)) }}
{{- $pod := .pod | default dict | deepCopy }}
{{- range $name, $value := dict "enableServiceLinks" false "terminationGracePeriodSeconds" .grace "topologySpreadConstraints" (list $apart) }}
{{- if not (hasKey $pod $name) }}{{- $_ := set $pod $name $value }}{{ end }}
{{- end }}
{{- with concat (.root.Values.global.imagePullSecrets | default list) ($pod.imagePullSecrets | default list) | uniq }}
{{- $_ := set $pod "imagePullSecrets" . }}
{{- end }}
{{- toYaml $pod }}
{{- end }}

{{- /* The ServingProfile `default`, with the registry and the pull Secrets that all pods get. */}}
{{- define "pagoda.profile" -}}
{{- $profile := deepCopy .Values.defaultProfile }}
{{- range $name, $image := .Values.defaultProfile.images }}
{{- $_ := set $profile.images $name (include "pagoda.image" (dict "root" $ "image" $image)) }}
{{- end }}
{{- with concat (.Values.global.imagePullSecrets | default list) ($profile.imagePullSecrets | default list) | uniq }}
{{- $_ := set $profile "imagePullSecrets" . }}
{{- end }}
{{- toJson $profile }}
{{- end }}

{{- define "pagoda.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "pagoda.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: probes}
  periodSeconds: 1
  failureThreshold: 120
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 10
  failureThreshold: 3
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  periodSeconds: 1
  # One late answer of a busy process must not empty the Service; a leaving one says 503 three times within its grace of 5 s.
  failureThreshold: 3
  timeoutSeconds: 5
{{- end }}

{{- /* Whole seconds of a duration with one unit (30s, 10m, 1h); anything else fails the render with the accepted forms. */}}
{{- define "pagoda.seconds" -}}
{{- if not (regexMatch "^[0-9]{1,6}(s|m|h)$" .) }}{{ fail (printf "%q is not a duration: use 30s, 10m or 1h" .) }}{{ end }}
{{- $number := regexFind "^[0-9]+" . | int }}
{{- $unit := regexFind "[smh]$" . }}
{{- mul $number (get (dict "s" 1 "m" 60 "h" 3600) $unit) }}
{{- end }}

{{- /* Whether there are gateways. Values of a release from before this one, as --reuse-values brings them, say nothing. */}}
{{- define "pagoda.gateway" -}}
{{- if ne (toString .Values.gateway.enabled) "false" }}true{{ end }}
{{- end }}

{{- /* The account whose token the monitors show to replicas; empty if nothing asks for one. */}}
{{- define "pagoda.collector" -}}
{{- if and .Values.auth.enabled .Values.monitoring.serviceMonitor.enabled }}{{ .Release.Namespace }}/{{ .Release.Name }}-metrics{{ end }}
{{- end }}

{{- /* Who may call replicas, as the operator reads it. */}}
{{- define "pagoda.callers" -}}
{{- $callers := dict
      "gateway" (printf "%s/%s-gateway" .Release.Namespace .Release.Name)
      "operator" (printf "%s/%s-operator" .Release.Namespace .Release.Name)
      "metrics" (concat .Values.auth.metrics.accounts (include "pagoda.collector" . | splitList "," | compact) | default list)
      "metricsFrom" .Values.auth.metrics.networks
      "tokens" .Values.auth.enabled
      "networkPolicy" .Values.networkPolicy.enabled
      "clients" (not (include "pagoda.gateway" .)) }}
{{- with .Values.networkPolicy.proxies }}
{{- $callers = set $callers "proxies" . }}
{{- end }}
{{- if .Values.monitoring.serviceMonitor.enabled }}
{{- $callers = set $callers "metricsNamespaces" .Values.monitoring.serviceMonitor.namespaces }}
{{- end }}
{{- with .Values.operator.class }}
{{- $callers = set $callers "serviceClass" . }}
{{- end }}
{{- $callers | toJson }}
{{- end }}

{{- /* A token of the pod's own account for our own wires; kubelet renews it. */}}
{{- define "pagoda.token" -}}
name: token
projected:
  sources:
    - serviceAccountToken:
        audience: pagoda
        expirationSeconds: 3600
        path: token
{{- end }}

{{- define "pagoda.firstKeySecret" -}}
pagoda-first-key
{{- end }}

{{- /* The first API key's text, made once per rendering, so that the Secret and the notes speak of the same key. Empty if it exists already. */}}
{{- define "pagoda.firstKey" -}}
{{- $auth := .Values.gateway.auth }}
{{- if and (include "pagoda.gateway" .) $auth.firstKey.create .Release.IsInstall (not (lookup "v1" "Secret" .Release.Namespace (include "pagoda.firstKeySecret" .))) }}
{{- if not (hasKey $auth "madeKey") }}{{- $_ := set $auth "madeKey" (printf "pagoda-%s" (randAlphaNum 43)) }}{{ end }}
{{- $auth.madeKey }}
{{- end }}
{{- end }}

{{- /* Among how many gateways a quota is divided without a common store. Fewer than there are would admit more than the limit. */}}
{{- define "pagoda.quotaGateways" -}}
{{- $gateways := .Values.gateway.quota.gateways | default .Values.gateway.replicas }}
{{- if not $gateways }}
{{- fail "gateway.replicas is null: set gateway.quota.gateways to the autoscaler's maximum, because each gateway takes its part of every quota" }}
{{- end }}
{{- $gateways }}
{{- end }}

{{- /* Where the operator serves, if not everywhere: the release's own namespace is always among them. */}}
{{- define "pagoda.namespaces" -}}
{{- with .Values.operator.namespaces }}{{ append . $.Release.Namespace | uniq | sortAlpha | join "," }}{{ end }}
{{- end }}

{{- /* What the operator may do in a namespace with services. */}}
{{- define "pagoda.operatorRules" -}}
- apiGroups: [serving.pagoda.dev]
  resources: [inferenceservices, loraadapters]
  verbs: [list, watch]
- apiGroups: [serving.pagoda.dev]
  resources: [inferenceservices/status, loraadapters/status]
  verbs: [patch]
# Children block their owner's deletion; where OwnerReferencesPermissionEnforcement is on (OpenShift), that takes this right.
- apiGroups: [serving.pagoda.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# Created: the pod that reads a model's config.json once, and the one that tries a new revision.
- apiGroups: [""]
  resources: [pods]
  # Marks those that drain, deletes one that is sick and one that has read or tried.
  verbs: [get, list, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  # Read: those of a pod whose volumes the kubelet cannot mount.
  verbs: [list, create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, delete]
# Behind a TenantQuota that asks for one.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [get, list, create, patch, delete]
{{- end }}
