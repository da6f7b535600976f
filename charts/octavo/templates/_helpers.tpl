{{/* Labels of every object. Call with a dict: root, component. */}}
{{- define "octavo.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: octavo
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels that select a component's pods; they never change. */}}
{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Image reference. Call with a dict: root, image. */}}
{{- define "octavo.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Names of cluster-wide objects: several installations may share a cluster. */}}
{{- define "octavo.clusterName" -}}
{{ .root.Release.Namespace }}-{{ .name }}
{{- end }}

{{/* Namespaces served, as a JSON list; empty with scope `cluster`. */}}
{{- define "octavo.namespaces" -}}
{{- if eq .Values.rbac.scope "cluster" -}}
{{- with .Values.rbac.namespaces -}}
{{- fail (printf "rbac.namespaces is [%s], but rbac.scope is cluster: all namespaces would be served; set rbac.scope=namespace, or leave rbac.namespaces empty" (join ", " .)) -}}
{{- end -}}
[]
{{- else -}}
{{ .Values.rbac.namespaces | default (list .Release.Namespace) | uniq | sortAlpha | toJson }}
{{- end -}}
{{- end }}

{{/* Pods within the restricted Pod Security standard. */}}
{{- define "octavo.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "octavo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where pods go. Call with a dict: root, component, values. */}}
{{- define "octavo.scheduling" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "octavo.selector" (dict "root" .root "component" .component) | nindent 8 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* NetworkPolicy: names are resolved by whoever does so in this cluster; policies see the port of the DNS pod. */}}
{{- define "octavo.egressDNS" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchLabels:
          k8s-app: kube-dns
{{- end }}

{{- define "octavo.egressAPIServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{/* NetworkPolicyPeer: inference pods of the namespaces served. */}}
{{- define "octavo.inferencePods" -}}
- namespaceSelector:
    {{- $namespaces := include "octavo.namespaces" . | fromJsonArray }}
    {{- if $namespaces }}
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson $namespaces }}
    {{- else }} {}
    {{- end }}
  podSelector:
    matchLabels:
      app.kubernetes.io/managed-by: octavo
      app.kubernetes.io/component: server
{{- end }}

{{/* Annotations of an object of `helm test`, by its turn. */}}
{{- define "octavo.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
