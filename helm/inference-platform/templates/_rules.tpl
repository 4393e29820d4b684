{{/*
What goes with a service beside its own objects, by API group. Releases are ControllerRevisions, canaries Leases; the
document is kept as an InferenceService where the kind is ours.
*/}}
{{- define "inference-platform.kept" -}}
"": [configmaps, persistentvolumeclaims]
apps: [controllerrevisions]
coordination.k8s.io: [leases]
ome.io: [inferenceservices, inferenceservices/status]
serving.kserve.io: [inferenceservices, inferenceservices/status, llminferenceservices, llminferenceservices/status, inferencegraphs, inferencegraphs/status]
{{- end -}}

{{/* What others make of a service, and what explains why it is not ready; runtimes and models of its namespace. */}}
{{- define "inference-platform.seen" -}}
"": [pods, pods/log, events]
apps: [replicasets]
discovery.k8s.io: [endpointslices]
serving.knative.dev: [revisions]
ome.io: [servingruntimes, basemodels]
serving.kserve.io: [servingruntimes, localmodelnamespacecaches]
{{- end -}}

{{/*
What tells a plan what there is: runtimes, models, accelerators, free GPUs, and where requests come in. Namespaces are
listed to find the canaries that an account may read.
*/}}
{{- define "inference-platform.catalogue" -}}
"": [namespaces, nodes]
gateway.networking.k8s.io: [gateways]
ome.io: [clusterservingruntimes, clusterbasemodels, finetunedweights, acceleratorclasses]
serving.kserve.io: [clusterservingruntimes, localmodelcaches]
{{- end -}}

{{- define "inference-platform.rules" -}}
{{- $verbs := .verbs -}}
{{- range $group, $names := .resources }}
- apiGroups: [{{ toJson $group }}]
  resources: {{ toJson $names }}
  verbs: {{ toJson $verbs }}
{{- end }}
{{- end -}}
