{{/* The plan that the simple values amount to: one workload of our predictor, in the shape of `platformctl values`. */}}
{{- define "inference-service.simple" -}}
{{- $name := include "inference-service.name" . -}}
{{- $namespace := include "inference-service.namespace" . -}}
{{- $serverless := eq .Values.mode "serverless" -}}
{{- $least := .Values.replicas.min | default (ternary 0 1 $serverless) | int -}}
{{- $most := .Values.replicas.max | int -}}
{{- if not (has .Values.mode (list "serverless" "raw" "stateful")) -}}
{{- fail (printf "mode = %s, must be serverless, raw or stateful; for others pass a plan: platformctl values -f service.yaml" .Values.mode) -}}
{{- end -}}
{{- if and (not $serverless) (eq (toString .Values.replicas.min) "0") -}}
{{- fail "replicas.min = 0, must be at least 1 unless mode is serverless; KEDA can do it with a plan: platformctl values -f service.yaml" -}}
{{- end -}}
{{- if and (or $most (not $serverless)) (lt $most $least) -}}
{{- fail (printf "replicas.max = %d, must be at least replicas.min = %d" $most $least) -}}
{{- end -}}
{{- $own := dict "pilotlight.dev/workload" $name -}}
{{- $selector := ternary (dict "serving.knative.dev/service" $name) $own $serverless -}}
{{- $labels := include "inference-service.labels" . | fromYaml -}}
{{- $part := dict "app.kubernetes.io/component" "predictor" -}}
{{- $stable := omit $labels "helm.sh/chart" -}}{{/* a newer chart alone is no reason for a new revision */}}
{{- $pod := include "inference-service.pod" . -}}
{{- $digest := list $pod .Values.podLabels .Values.podAnnotations | toJson | sha256sum | trunc 8 -}}
{{/* Knative names its revisions itself; others are told apart by what their pods are made of. */}}
{{- $named := dict "pilotlight.dev/revision" (printf "%s-%s" $name $digest) -}}
{{- $scaled := and (eq .Values.mode "raw") (gt $most $least) -}}
name: {{ toJson $name }}
namespace: {{ toJson $namespace }}
mode: {{ toJson .Values.mode }}
entry: {{ toJson $name }}
labels: {{ toJson $labels }}
annotations: {{ toJson .Values.annotations }}
serviceAccount:
  create: {{ toJson .Values.serviceAccount.create }}
  name: {{ .Values.serviceAccount.name | default $name | toJson }}
address: null
route: {{ include "inference-service.route" . | fromYaml | toJson }}
monitoring:
  enabled: {{ toJson .Values.monitoring.enabled }}
  name: {{ .Values.monitoring.name | default $name | toJson }}
  rules: {{ toJson .Values.monitoring.rules }}
workloads:
  - role: predictor
    name: {{ toJson $name }}
    mode: {{ toJson .Values.mode }}
    revision: {{ toJson .Values.revision }}
    labels:
      {{- include "inference-service.joined" (list $labels $part) | nindent 6 }}
    annotations: {{ toJson .Values.annotations }}
    selector: {{ toJson $selector }}
    serviceSelector: {{ toJson $selector }}
    serviceLabels:
      {{- include "inference-service.joined" (list $labels $own) | nindent 6 }}
    headlessName: {{ ternary (printf "%s-pods" $name) "" (eq .Values.mode "stateful") | toJson }}
    monitorSelector: {{ toJson $own }}
    template:
      metadata:
        labels:
          {{- include "inference-service.joined" (concat (list $stable $part .Values.podLabels) (ternary (list) (list $own $named) $serverless)) | nindent 10 }}
        annotations: {{ toJson .Values.podAnnotations }}
      spec:
        {{- $pod | nindent 8 }}
    replicas: {{ ternary (toJson nil) (toJson $least) (or $serverless $scaled) }}
    strategy: {{ toJson .Values.strategy }}
    progressDeadlineSeconds: {{ toJson .Values.progressDeadlineSeconds }}
    containerConcurrency: {{ toJson .Values.containerConcurrency }}
    timeoutSeconds: {{ toJson .Values.timeoutSeconds }}
    traffic:
      {{- if .Values.revision.name }}
      - {revisionName: {{ toJson .Values.revision.name }}, latestRevision: false, percent: 100}
      {{- else }}
      - {latestRevision: true, percent: 100}
      {{- end }}
    ports:
      - {name: http1, port: 80, targetPort: 8080, protocol: TCP}
      - {name: grpc, port: 8081, targetPort: 8081, protocol: TCP, appProtocol: kubernetes.io/h2c}
      - {name: metrics, port: 8082, targetPort: 8082, protocol: TCP}
    network: {open: true, peers: []}
    disruption: {{ toJson .Values.disruption }}
    scaling:
      scaler: {{ ternary "kpa" (ternary "hpa" "none" $scaled) $serverless }}
      target: {apiVersion: apps/v1, kind: Deployment, name: {{ toJson $name }}}
      minReplicas: {{ $least }}
      maxReplicas: {{ $most }}
      annotations:
        autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
        autoscaling.knative.dev/metric: concurrency
        autoscaling.knative.dev/target: {{ .Values.scaling.concurrency | toString | toJson }}
        autoscaling.knative.dev/min-scale: {{ $least | toString | toJson }}
        autoscaling.knative.dev/max-scale: {{ $most | toString | toJson }}
      metrics:
        - type: Resource
          resource:
            name: cpu
            target: {type: Utilization, averageUtilization: {{ toJson .Values.scaling.cpuPercent }}}
      behavior: {}
      triggers: []
    authentications: []
    interceptor: null
    monitored: {{ toJson .Values.monitoring.enabled }}
    metricsPort: 8082
    metricsPortName: metrics
{{- end -}}

{{- define "inference-service.labels" -}}
{{- $name := include "inference-service.name" . -}}
app.kubernetes.io/name: {{ toJson $name }}
app.kubernetes.io/instance: {{ toJson .Release.Name }}
app.kubernetes.io/managed-by: {{ toJson .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | toJson }}
pilotlight.dev/service: {{ toJson $name }}
{{- range $key, $value := .Values.labels }}
{{ toJson $key }}: {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* Knative brings its own ingress; the others get an HTTPRoute where a gateway is named. */}}
{{- define "inference-service.route" -}}
{{- if and .Values.gateway.name (ne .Values.mode "serverless") -}}
{{- $name := include "inference-service.name" . -}}
name: {{ toJson $name }}
parent: {{ toJson .Values.gateway }}
hosts: {{ toJson .Values.hosts }}
timeout: {{ printf "%ds" (int64 .Values.timeoutSeconds) | toJson }}
backends: [{name: {{ toJson $name }}, port: 80, weight: 100}]
grant: null
{{- end -}}
{{- end -}}
