{{/* The one container of a pod: its image, its settings as variables, its probes, its mounts. */}}

{{- define "paceline.image" -}}
{{- $image := .tier.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest -}}
@{{ $image.digest }}
{{- else -}}
:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* A setting as the text of a variable: lists with commas, numbers without an exponent. */}}
{{- define "paceline.text" -}}
{{- if kindIs "string" . -}}{{ . }}
{{- else if kindIs "slice" . -}}{{ join "," . }}
{{- else -}}{{ toJson . }}
{{- end -}}
{{- end -}}

{{/* What the chart itself decides of a service's settings, as {setting: value}. */}}
{{- define "paceline.settings" -}}
{{- $tier := .tier -}}
{{- $own := dict "host" "0.0.0.0" "port" 50051 "health_port" 50052 "log_format" "json" -}}
{{- $_ := set $own "drain_timeout_s" $tier.drainTimeoutSeconds -}}
{{- if .root.Values.metrics.enabled -}}{{- $_ := set $own "metrics_port" 9464 -}}{{- end -}}
{{- $fullname := include "paceline.fullname" .root -}}
{{- if eq .component "gateway" -}}
{{- $_ := set $own "verify" (printf "%s-verify:50051" $fullname) -}}
{{- $_ := set $own "draft" (printf "%s-draft:50051" $fullname) -}}
{{- $_ := set $own "tokenizer_cache_dir" "/var/cache/paceline/tokenizers" -}}
{{- $_ := set $own "max_connection_age_s" 300 -}}
{{- else -}}
{{- $_ := set $own "cache_dir" "/var/cache/paceline/models" -}}
{{- $_ := set $own (ternary "model" "target" (eq .component "verify")) (default .root.Values.verify.model $tier.model) -}}
{{- if eq .component "draft" -}}{{- $_ := set $own "source" $tier.sources -}}{{- end -}}
{{- if $tier.gpu.count -}}{{- $_ := set $own "device" "cuda" -}}{{- end -}}
{{- end -}}
{{- if ne .root.Values.tls.mode "none" -}}
{{- $ends := ternary (list "tls" "tier") (list "tls") (eq .component "gateway") -}}
{{- range $end := $ends -}}
{{- $_ := set $own (printf "%s_certificate" $end) "/var/run/secrets/paceline/tls/tls.crt" -}}
{{- $_ := set $own (printf "%s_key" $end) "/var/run/secrets/paceline/tls/tls.key" -}}
{{- end -}}
{{- if eq .component "gateway" -}}{{- $_ := set $own "tier_ca" "/var/run/secrets/paceline/tls/ca.crt" -}}{{- end -}}
{{- if or (ne .component "gateway") .root.Values.tls.clientCertificates -}}
{{- $_ := set $own "tls_ca" "/var/run/secrets/paceline/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .component "gateway") .root.Values.auth.tokenSecret.name -}}
{{- $_ := set $own "token_file" "/var/run/secrets/paceline/auth/tokens" -}}
{{- end -}}
{{- include "paceline.overlay" (list $own $tier.settings) -}}
{{- toJson $own -}}
{{- end -}}

{{- define "paceline.environment" -}}
{{- $settings := include "paceline.settings" . | fromJson -}}
{{- $prefix := printf "PACELINE_%s_" (upper .component) -}}
{{- range $name, $value := $settings }}
- name: {{ printf "%s%s" $prefix (upper $name) }}
  value: {{ include "paceline.text" $value | quote }}
{{- end }}
{{- if and (ne .component "gateway") (not (hasKey $settings "threads")) }}
# As many threads as the limit has cores, not as the node has.
- name: {{ printf "%sTHREADS" $prefix }}
  valueFrom: {resourceFieldRef: {containerName: {{ .component }}, resource: limits.cpu}}
{{- end }}
{{- if not (hasKey $settings "zone") }}
# Empty where the cluster does not label pods with their zone, which means no preference.
- name: {{ printf "%sZONE" $prefix }}
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}
# Threads that wait must sleep: spinning, they take what another container could use.
- {name: OMP_WAIT_POLICY, value: PASSIVE}
- {name: HOME, value: /var/cache/paceline}
- {name: HF_HOME, value: /var/cache/paceline/hub}
- {name: HF_HUB_DISABLE_TELEMETRY, value: "1"}
{{- if .tier.weights.offline }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- with .tier.weights.tokenSecret }}
{{- if .name }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- range $name, $value := .tier.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{/*
Startup lasts as long as a model may load; until then neither of the others asks. Liveness has a name
of its own, which serves while draining or waiting for another tier: that is no reason to restart.
Their port is never encrypted, since kubelets speak no TLS to it.
*/}}
{{- define "paceline.probes" -}}
startupProbe:
  grpc: {port: 50052, service: {{ ternary "liveness" "" (eq .component "gateway") | quote }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ max 6 (div (add (int .tier.loadTimeoutSeconds) 4) 5) }}
readinessProbe:
  grpc: {port: 50052, service: ""}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  grpc: {port: 50052, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "paceline.container" -}}
- name: {{ .component }}
  image: {{ include "paceline.image" . | quote }}
  imagePullPolicy: {{ .tier.image.pullPolicy }}
  command: [python, -m, {{ ternary "gateway" (printf "%s_service" .component) (eq .component "gateway") }}]
  env:
    {{- include "paceline.environment" . | trim | nindent 4 }}
  ports:
    - {name: grpc, containerPort: 50051}
    - {name: health, containerPort: 50052}
    {{- if .root.Values.metrics.enabled }}
    - {name: metrics, containerPort: 9464}
    {{- end }}
  {{- include "paceline.probes" . | nindent 2 }}
  lifecycle:
    # Time for every gateway and balancer to see that the pod has left, before it refuses anybody.
    preStop: {sleep: {seconds: {{ int .tier.preStopSeconds }}}}
  resources:
    {{- $resources := deepCopy .tier.resources }}
    {{- if .tier.gpu.count }}
    {{- $limits := default dict $resources.limits }}
    {{- $_ := set $limits .tier.gpu.resource .tier.gpu.count }}
    {{- $_ := set $resources "limits" $limits }}
    {{- end }}
    {{- toYaml $resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: cache, mountPath: /var/cache/paceline}
    {{- if ne .root.Values.tls.mode "none" }}
    - {name: tls, mountPath: /var/run/secrets/paceline/tls, readOnly: true}
    {{- end }}
    {{- if and (eq .component "gateway") .root.Values.auth.tokenSecret.name }}
    - {name: auth, mountPath: /var/run/secrets/paceline/auth, readOnly: true}
    {{- end }}
    {{- if or .tier.weights.existingClaim .tier.weights.image }}
    - {name: weights, mountPath: /models, readOnly: true}
    {{- end }}
{{- end -}}
