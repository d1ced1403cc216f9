{{- define "etcdmaint.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "etcdmaint.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "etcdmaint.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "etcdmaint.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "etcdmaint.selectorLabels" -}}
app.kubernetes.io/name: {{ include "etcdmaint.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "etcdmaint.labels" -}}
{{ include "etcdmaint.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: etcdmaint
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "etcdmaint.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "etcdmaint.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "etcdmaint.leaseName" -}}
{{- default (include "etcdmaint.fullname" .) .Values.leaderElection.leaseName -}}
{{- end -}}

{{- define "etcdmaint.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if .Values.image.registry -}}
{{- $repository = printf "%s/%s" .Values.image.registry $repository -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A Go duration such as 1m30s in whole seconds, rounded up. */}}
{{- define "etcdmaint.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range $part := regexFindAll "[0-9]+([.][0-9]+)?(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" $part -}}
{{- $each := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit $part | float64) (get $each $unit)) -}}
{{- end -}}
{{- ceil $seconds | int -}}
{{- end -}}

{{/* What the operator may do with the objects of a namespace that it watches. */}}
{{- define "etcdmaint.watchRules" -}}
- apiGroups: [etcd-operator.cozystack.io]
  resources: [etcddefrags]
  # patch: kopf's finalizer. delete: ttlSecondsAfterFinished.
  verbs: [get, list, watch, patch, delete]
- apiGroups: [etcd-operator.cozystack.io]
  resources: [etcddefrags/status]
  verbs: [patch]
- apiGroups: [etcdmaint.io]
  resources: [etcdconnections]
  verbs: [get, list, watch]
- apiGroups: [etcdmaint.io]
  resources: [etcdconnections/status]
  verbs: [patch]
- apiGroups: [etcdmaint.io]
  resources: [storagecompressionconfigurations]
  verbs: [get, list, watch]
- apiGroups: [etcdmaint.io]
  resources: [storagecompressionconfigurations/status]
  verbs: [patch]
# The file of a StorageCompressionConfiguration is published in one.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, update]
# Its UID proves that an etcd is this API server's own. In a Role it counts in kube-system alone.
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
- apiGroups: [etcd-operator.cozystack.io]
  resources: [etcdclusters]
  # list, watch: the annotation that asks for compaction.
  verbs: [get, list, watch]
- apiGroups: [etcd-operator.cozystack.io]
  resources: [etcdmembers, etcdsnapshots]
  verbs: [list]
# Restarts of a member's container: the other operator deletes a member that has too many.
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
# Read by name only: never listed, never watched.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# Whether another controller for EtcdDefrags is alive.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [aa20b3a9.etcd-operator.cozystack.io]
  verbs: [list]
{{- end -}}

{{/* What the uninstall hook may do with EtcdDefrags. */}}
{{- define "etcdmaint.hookRules" -}}
- apiGroups: [etcd-operator.cozystack.io]
  resources: [etcddefrags]
  verbs: [get, list, patch]
{{- end -}}
