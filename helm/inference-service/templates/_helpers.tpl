{{/* The service's name: its own, else the release's. */}}
{{- define "inference-service.name" -}}
{{- .Values.name | default .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "inference-service.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "inference-service.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{/* Several mappings as one, in YAML; a later one wins. Unlike `merge` it keeps false, 0 and "". */}}
{{- define "inference-service.joined" -}}
{{- $joined := dict -}}
{{- range $part := . -}}
{{- range $key, $value := $part -}}
{{- $_ := set $joined $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $joined -}}
{{- end -}}

{{/* What a container of ours may do: nothing (Pod Security "restricted"). */}}
{{- define "inference-service.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsGroup: 65532
runAsNonRoot: true
runAsUser: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/*
What every template reads, as JSON: the plan as `platformctl values` wrote it, or the one that the simple values amount
to.
*/}}
{{- define "inference-service.view" -}}
{{- $planned := or .Values.workloads .Values.objects (eq .Values.mode "virtual") -}}
{{- if and $planned .Values.model.storageUri -}}
{{- fail "model.storageUri and a plan (workloads, objects) exclude each other: leave one of them out" -}}
{{- else if not (or $planned .Values.model.storageUri) -}}
{{- fail "set model.storageUri, or pass a plan: platformctl values -f service.yaml > values.yaml" -}}
{{- end -}}
{{- if $planned -}}
{{- $named := dict "name" (include "inference-service.name" .) "namespace" (include "inference-service.namespace" .) -}}
{{- include "inference-service.joined" (list .Values $named) | fromYaml | toJson -}}
{{- else -}}
{{- include "inference-service.simple" . | fromYaml | toJson -}}
{{- end -}}
{{- end -}}
