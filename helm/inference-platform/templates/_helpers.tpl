{{- define "inference-platform.labels" -}}
app.kubernetes.io/name: {{ toJson .Chart.Name }}
app.kubernetes.io/instance: {{ toJson .Release.Name }}
app.kubernetes.io/managed-by: {{ toJson .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | toJson }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of the gateway's pods and of nothing else. */}}
{{- define "inference-platform.gateway" -}}
app.kubernetes.io/component: gateway
pilotlight.dev/gateway: {{ toJson .Values.gateway.name }}
{{- end -}}

{{/* Labels of the API's pod and of nothing else. */}}
{{- define "inference-platform.api" -}}
app.kubernetes.io/component: api
pilotlight.dev/api: {{ toJson .Values.api.name }}
{{- end -}}

{{/* Labels of the controller's pod and of nothing else. */}}
{{- define "inference-platform.controller" -}}
app.kubernetes.io/component: controller
pilotlight.dev/controller: {{ toJson .Values.controller.name }}
{{- end -}}

{{/* Everything that a service can consist of, by API group. A test compares it with what is rendered. */}}
{{- define "inference-platform.resources" -}}
"": [services, serviceaccounts]
apps: [deployments, statefulsets]
autoscaling: [horizontalpodautoscalers]
policy: [poddisruptionbudgets]
networking.k8s.io: [networkpolicies]
rbac.authorization.k8s.io: [roles, rolebindings]
gateway.networking.k8s.io: [httproutes, referencegrants]
serving.knative.dev: [services, routes, domainmappings]
keda.sh: [scaledobjects, triggerauthentications]
http.keda.sh: [interceptorroutes]
inference.networking.k8s.io: [inferencepools]
leaderworkerset.x-k8s.io: [leaderworkersets]
ray.io: [rayclusters]
monitoring.coreos.com: [servicemonitors, podmonitors, prometheusrules]
{{- end -}}

{{/* A user's or group's subject names the API group; a ServiceAccount's its namespace. */}}
{{- define "inference-platform.subject" -}}
kind: {{ .kind }}
name: {{ toJson .name }}
{{- if eq .kind "ServiceAccount" }}
namespace: {{ required "a ServiceAccount among deployers or viewers needs its namespace" .namespace | toJson }}
{{- else }}
apiGroup: rbac.authorization.k8s.io
{{- end }}
{{- end -}}
