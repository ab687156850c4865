{{/* What is deployed: one entry per pool of a tier, each with everything that its templates read. */}}

{{/* Cut so that a tier's name and a hash stay within the 58 characters of "paceline.pods". */}}
{{- define "paceline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 37 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 37 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 37 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Lays changes over a base, in place, at every depth. Takes a list of the two.
The merge functions of Helm would ignore a 0 or a false among the changes.
*/}}
{{- define "paceline.overlay" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $old := index $base $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- include "paceline.overlay" (list $old $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A JSON list of {name, component, pool, tier}: the main pool of each tier, then its further ones.
A tier is the defaults under its own values, a pool is its tier under the pool's changes.
*/}}
{{- define "paceline.workloads" -}}
{{- $root := . -}}
{{- $all := list -}}
{{- range $component := list "gateway" "draft" "verify" -}}
{{- $tier := deepCopy $root.Values.defaults -}}
{{- include "paceline.overlay" (list $tier (deepCopy (index $root.Values $component))) -}}
{{- $pools := dict "main" dict -}}
{{- include "paceline.overlay" (list $pools (default dict $tier.pools)) -}}
{{- range $pool, $changes := $pools -}}
{{- $values := deepCopy $tier -}}
{{- include "paceline.overlay" (list $values (deepCopy $changes)) -}}
{{- $name := printf "%s-%s" (include "paceline.fullname" $root) $component -}}
{{- if ne $pool "main" -}}{{- $name = printf "%s-%s" $name $pool -}}{{- end -}}
{{- $all = append $all (dict "name" $name "component" $component "pool" $pool "tier" $values) -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/*
A regular expression for the names of a workload's pods, NAME-HASH-RANDOM. Kubernetes cuts all before
RANDOM at 58 characters, of which HASH has up to 10: names of main pools are too short for that, and
what a longer one leaves is not taken for a main pool's.
*/}}
{{- define "paceline.pods" -}}
{{- if le (len .) 46 -}}
{{ . }}-[a-z0-9]{1,10}-[a-z0-9]{5}
{{- else if le (len .) 57 -}}
{{ . }}-[a-z0-9]+(-[a-z0-9]{5})?
{{- else -}}
{{ trunc 58 . }}[a-z0-9]{5}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component. Takes a list of the root and a component. */}}
{{- define "paceline.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Every object's labels. Takes a list of the root and a component. */}}
{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}
