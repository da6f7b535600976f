{{/* The gateway reads where models are, and nothing else. */}}
{{- define "octavo.gatewayRules" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end }}
