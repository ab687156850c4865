{{/* A pod of any tier. Takes {root, name, component, pool, tier}. */}}

{{- define "paceline.volumes" -}}
- name: tmp
  emptyDir: {}
{{- $cache := .tier.weights.cache }}
- name: cache
{{- if $cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ $cache.existingClaim }}}
{{- else if $cache.claim.enabled }}
  persistentVolumeClaim: {claimName: {{ .name }}-cache}
{{- else }}
  emptyDir: {sizeLimit: {{ $cache.sizeLimit }}}
{{- end }}
{{- if ne .root.Values.tls.mode "none" }}
- name: tls
  secret: {secretName: {{ include "paceline.certificate" (list .root .component) }}, defaultMode: 0440}
{{- end }}
{{- with .root.Values.auth.tokenSecret }}
{{- if and .name (eq $.component "gateway") }}
- name: auth
  secret: {secretName: {{ .name }}, defaultMode: 0440, items: [{key: {{ .key }}, path: tokens}]}
{{- end }}
{{- end }}
{{- if .tier.weights.existingClaim }}
- name: weights
  persistentVolumeClaim: {claimName: {{ .tier.weights.existingClaim }}, readOnly: true}
{{- else if .tier.weights.image }}
- name: weights
  image: {reference: {{ .tier.weights.image }}, pullPolicy: IfNotPresent}
{{- end }}
{{- end -}}

{{/* The Secret with a tier's certificate. Takes a list of the root and a component. */}}
{{- define "paceline.certificate" -}}
{{- $tls := (index . 0).Values.tls -}}
{{- $component := index . 1 -}}
{{- if eq $tls.mode "secrets" -}}
{{- required (printf "tls.secrets.%s is needed for mode secrets" $component) (index $tls.secrets $component) -}}
{{- else -}}
{{- include "paceline.fullname" (index . 0) }}-{{ $component }}-tls
{{- end -}}
{{- end -}}

{{- define "paceline.spread" -}}
{{- $when := .tier.topologySpread -}}
{{- $selector := include "paceline.selector" (list .root .component) -}}
{{- if $when }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $when }}
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.pod" -}}
serviceAccountName: {{ include "paceline.fullname" .root }}-{{ .component }}
automountServiceAccountToken: false
# The variables that Kubernetes would add for the Services are spelled like our settings.
enableServiceLinks: false
# What preStop and the drain may take together, and a little to stop in.
terminationGracePeriodSeconds: {{ add (int .tier.preStopSeconds) (int .tier.drainTimeoutSeconds) 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "runtimeClassName" "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with index $.tier $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- include "paceline.spread" . }}
volumes:
  {{- include "paceline.volumes" . | nindent 2 }}
containers:
  {{- include "paceline.container" . | nindent 2 }}
{{- end -}}
