{{/* Each of these takes a dict: root is the top context, name the component. */}}

{{- define "farm.name" -}}
{{- printf "%s-%s" (.root.Release.Name | replace "." "-" | trunc 51 | trimSuffix "-") .name -}}
{{- end }}

{{- define "farm.selector" -}}
app.kubernetes.io/name: gemm-farm
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "farm.labels" -}}
{{ include "farm.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Hooks end before the rest of a release is made. Helm removes them when they have succeeded. */}}
{{- define "farm.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "farm.image" -}}
{{- printf "%s/%s:%s" .root.Values.image.repository .target (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end }}

{{/* What no container may do. */}}
{{- define "farm.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Of every pod. target: the image; values: of the component; folder: a claim of storage, or none for an empty folder. */}}
{{- define "farm.pod" -}}
serviceAccountName: {{ include "farm.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Every account may write to the top of a volume, and programs refuse such a home. They get a folder in it.
initContainers:
  - name: home
    image: {{ include "farm.image" . }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [mkdir, -p, -m, "0700", /volume/home]
    securityContext:
      {{- include "farm.confined" . | nindent 6 }}
    resources:
      requests: {cpu: 10m, memory: 16Mi}
      limits: {memory: 64Mi}
    volumeMounts:
      - name: data
        mountPath: /volume
{{- end }}

{{- define "farm.container" -}}
image: {{ include "farm.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "farm.confined" . | nindent 2 }}
{{- end }}

{{/* optional: whether the program works without them. */}}
{{- define "farm.secret" -}}
{{- $secret := .secret }}
{{- $optional := .optional }}
{{- range .keys }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ . }}
      {{- if $optional }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}

{{- define "farm.environment" -}}
- name: FARM_HOME
  value: /data
- name: FARM_LOG_JSON
  value: "true"
- name: HOME
  value: /tmp
{{- if .root.Values.certificates }}
# libpq's own: what it checks the certificate of Postgres with.
- name: PGSSLROOTCERT
  value: /etc/farm/ca.pem
{{- end }}
{{- range $name, $value := .root.Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Of trainer and web. */}}
{{- define "farm.registry" -}}
{{- include "farm.secret" (dict "secret" .secret "keys" (list "MLFLOW_TRACKING_URI")) }}
{{- include "farm.secret" (dict "secret" .secret "keys" (list "MLFLOW_TRACKING_USERNAME" "MLFLOW_TRACKING_PASSWORD") "optional" true) }}
{{- if .root.Values.certificates }}
- name: MLFLOW_TRACKING_SERVER_CERT_PATH
  value: /etc/farm/ca.pem
{{- end }}
{{- end }}

{{- define "farm.mounts" -}}
- name: data
  mountPath: /data
  subPath: home
- name: tmp
  mountPath: /tmp
{{- if .root.Values.certificates }}
- name: certificates
  mountPath: /etc/farm
  readOnly: true
{{- end }}
{{- end }}

{{- define "farm.volumes" -}}
- name: data
  {{- if .folder }}
  persistentVolumeClaim:
    claimName: {{ include "farm.name" . }}
  {{- else }}
  emptyDir: {}
  {{- end }}
- name: tmp
  emptyDir:
    medium: Memory
{{- with .root.Values.certificates }}
- name: certificates
  configMap:
    name: {{ . }}
{{- end }}
{{- end }}

{{- define "farm.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "farm.name" . }}
  labels:
    {{- include "farm.labels" . | nindent 4 }}
  annotations:
    # It has the private key, which cannot be made again.
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with .values.storage.className }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .values.storage.size }}
{{- end }}

{{/* variable: the setting with the address of metrics. */}}
{{- define "farm.metrics.environment" -}}
{{- if .root.Values.metrics.enabled }}
- name: {{ .variable }}
  value: {{ printf "0.0.0.0:%v" .root.Values.metrics.port | quote }}
{{- end }}
{{- end }}

{{- define "farm.metrics.port" -}}
- name: metrics
  containerPort: {{ .root.Values.metrics.port }}
{{- end }}

{{/* A program without a page is probed at its metrics. Without metrics, Kubernetes starts it again when it ends. */}}
{{- define "farm.metrics.probes" -}}
ports:
  {{- include "farm.metrics.port" . | nindent 2 }}
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 10
  # An hour: a coordinator serves metrics when Postgres and Redis have answered.
  failureThreshold: 360
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 4
{{- end }}
