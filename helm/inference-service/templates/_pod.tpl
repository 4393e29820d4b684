{{/*
The pod of the simple values. Serverless has one port and no startup probe, which would switch off Knative's own quick
probing; elsewhere a replica may take all of progressDeadlineSeconds to start.
*/}}
{{- define "inference-service.pod" -}}
{{- $serverless := eq .Values.mode "serverless" -}}
{{- $claim := hasPrefix "pvc://" .Values.model.storageUri -}}
{{- $place := trimPrefix "pvc://" .Values.model.storageUri -}}
serviceAccountName: {{ .Values.serviceAccount.name | default (include "inference-service.name" .) | toJson }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if not $serverless }}
terminationGracePeriodSeconds: {{ add (int .Values.timeoutSeconds) 15 }}
securityContext: {runAsNonRoot: true, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {pilotlight.dev/workload: {{ include "inference-service.name" . | toJson }}}}
{{- end }}
{{- range $key := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" }}
{{- with index $.Values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
containers:
  - name: predictor
    image: {{ include "inference-service.image" . | toJson }}
    imagePullPolicy: {{ toJson .Values.image.pullPolicy }}
    {{- with .Values.args }}
    args: {{ toJson . }}
    {{- end }}
    env:
      {{- $written := dict }}
      {{- range .Values.env }}{{ $_ := set $written .name true }}{{ end }}
      {{- range $key, $value := include "inference-service.settings" . | fromYaml }}
      {{- if not (hasKey $written $key) }}
      - {name: {{ toJson $key }}, value: {{ toJson $value }}}
      {{- end }}
      {{- end }}
      {{- range .Values.env }}
      - {{ toJson . }}
      {{- end }}
    ports:
      - {name: {{ ternary "http1" "http" $serverless }}, containerPort: 8080, protocol: TCP}
      {{- if not $serverless }}
      - {name: grpc, containerPort: 8081, protocol: TCP}
      - {name: metrics, containerPort: 8082, protocol: TCP}
      {{- end }}
    {{- include "inference-service.probes" . | nindent 4 }}
    resources:
      {{- $gpus := dict }}
      {{- if .Values.gpus }}{{ $_ := set $gpus "nvidia.com/gpu" (toString .Values.gpus) }}{{ end }}
      requests:
        {{- include "inference-service.joined" (list .Values.resources.requests $gpus) | nindent 8 }}
      limits:
        {{- include "inference-service.joined" (list .Values.resources.limits $gpus) | nindent 8 }}
    securityContext:
      {{- include "inference-service.securityContext" . | nindent 6 }}
    volumeMounts:
      - {name: model-cache, mountPath: /var/cache/pilotlight}
      - {name: scratch, mountPath: /tmp}
      {{- if $claim }}
      - name: model
        mountPath: /mnt/models
        readOnly: true
        {{- with trimPrefix (first (splitList "/" $place)) $place | trimAll "/" }}
        subPath: {{ toJson . }}
        {{- end }}
      {{- end }}
      {{- if .Values.gpus }}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- end }}
volumes:
  - {name: model-cache, emptyDir: {}}
  - {name: scratch, emptyDir: {}}
  {{- if $claim }}
  - {name: model, persistentVolumeClaim: {claimName: {{ splitList "/" $place | first | toJson }}, readOnly: true}}
  {{- end }}
  {{- if .Values.gpus }}
  - {name: shared-memory, emptyDir: {medium: Memory, sizeLimit: 1024Mi}}
  {{- end }}
{{- end -}}

{{- define "inference-service.probes" -}}
{{- $ready := dict "path" "/v2/health/ready" "port" 8080 -}}
{{- $live := dict "path" "/v2/health/live" "port" 8080 -}}
readinessProbe:
  httpGet: {{ toJson $ready }}
{{- if ne .Values.mode "serverless" }}
  periodSeconds: 5
  failureThreshold: 3
  timeoutSeconds: 5
startupProbe:
  httpGet: {{ toJson $ready }}
  periodSeconds: 1
  failureThreshold: {{ int .Values.progressDeadlineSeconds }}
{{- end }}
livenessProbe:
  httpGet: {{ toJson $live }}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
{{- end -}}

{{/* What the predictor is told; anything under `env` may say otherwise. */}}
{{- define "inference-service.settings" -}}
{{- $claim := hasPrefix "pvc://" .Values.model.storageUri -}}
INFERENCE_MODEL_PATH: {{ ternary "/mnt/models" .Values.model.storageUri $claim | toJson }}
INFERENCE_MODEL_NAME: {{ .Values.model.name | default (include "inference-service.name" .) | toJson }}
INFERENCE_HTTP_PORT: "8080"
INFERENCE_GRPC_PORT: "8081"
INFERENCE_METRICS_PORT: "8082"
INFERENCE_EXIT_TIMEOUT_SECS: {{ .Values.timeoutSeconds | toString | toJson }}
PILOTLIGHT_SERVICE: {{ include "inference-service.name" . | toJson }}
PILOTLIGHT_NAMESPACE: {{ include "inference-service.namespace" . | toJson }}
PILOTLIGHT_CACHE_DIR: /var/cache/pilotlight
{{- if ne .Values.mode "serverless" }}
INFERENCE_DRAIN_DELAY: "10"
{{- end }}
{{- end -}}
