{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The release is in a label of its own: two of them in a namespace do not select each other's pods. */}}
{{- define "heddle.broker.labels" -}}
app.kubernetes.io/name: heddle
app.kubernetes.io/part-of: {{ .Release.Name }}
{{- end }}
{{- define "heddle.worker.labels" -}}
app.kubernetes.io/name: heddle-worker
app.kubernetes.io/part-of: {{ .Release.Name }}
{{- end }}
{{- define "heddle.image" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}
{{/* An address of all interfaces. */}}
{{- define "heddle.any" -}}
{{ if .Values.ipv6 }}[::]{{ else }}*{{ end }}
{{- end }}
{{/* What other members may reach of one: the ports of tensor bytes. */}}
{{- define "heddle.data" -}}
- from: [{podSelector: {matchLabels: {app.kubernetes.io/part-of: {{ .Release.Name | quote }}}}}]
  ports: [{port: {{ .Values.networkPolicy.dataPorts.first }}, endPort: {{ .Values.networkPolicy.dataPorts.last }}}]
{{- end }}
{{- define "heddle.hard" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{/* Where a pod may run: (dict "of" .Values.broker "Values" .Values). */}}
{{- define "heddle.place" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .of.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}
