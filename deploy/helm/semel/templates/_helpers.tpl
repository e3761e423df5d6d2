{{- define "semel.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "semel.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "semel.labels" -}}
{{ include "semel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "semel.image" -}}
{{- $repository := required "image.repository is not set: the image is yours to build or to mirror" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The gateway's file. */}}
{{- define "semel.config" -}}
{{- if not .Values.config }}{{ fail "config is not set: it needs principal, upstreams and routes, as docs/gateway.md says" }}{{ end -}}
{{- $own := dict
  "version" 1
  "listen" (printf ":%d" (int .Values.ports.http))
  "admin" (dict "listen" (printf "%s:%d" (ternary (printf "[%s]" .Values.admin.host) .Values.admin.host (contains ":" .Values.admin.host)) (int .Values.ports.admin)))
  "store" (dict "url" "${SEMEL_STORE_URL}")
  "spool" (dict "dir" "/var/cache/semel" "max" (printf "%dGiB" (int .Values.spool.maxGiB)))
  "drain" (printf "%ds" (int .Values.drainSeconds))
  "drain_delay" (printf "%ds" (int .Values.drainDelaySeconds))
  "log_format" "json"
-}}
{{- merge $own .Values.config | toYaml }}
{{- end }}
