{{- define "penstock.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of one component; call with (list . "broker"). */}}
{{- define "penstock.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "penstock.labels" -}}
{{- $root := index . 0 -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What every container of ours has in common. */}}
{{- define "penstock.container" -}}
image: {{ include "penstock.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{ include "penstock.containerSecurity" . | nindent 2 }}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What every pod of ours has in common. */}}
{{- define "penstock.pod" -}}
serviceAccountName: {{ include "penstock.serviceAccount" . }}
automountServiceAccountToken: false
# Variables like PENSTOCK_PORT, made from Services' names, would be taken for settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user.uid }}
  runAsGroup: {{ .Values.user.gid }}
  fsGroup: {{ .Values.user.gid }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}
{{- end -}}

{{/* Mebibytes of "512Mi" or "2Gi". */}}
{{- define "penstock.mebibytes" -}}
{{- $text := toString . -}}
{{- if hasSuffix "Gi" $text -}}{{ mul (trimSuffix "Gi" $text | int64) 1024 }}
{{- else if hasSuffix "Mi" $text -}}{{ trimSuffix "Mi" $text | int64 }}
{{- else -}}{{ fail (printf "%q: write sizes as 512Mi or 2Gi" $text) }}
{{- end -}}
{{- end -}}

{{/* The shared volume in MiB: the log, a quarter for segments that readers hold, control blocks and cursors. */}}
{{- define "penstock.sharedMebibytes" -}}
{{- $log := include "penstock.mebibytes" .Values.broker.memory | int64 -}}
{{- add $log (div $log 4) 32 -}}
{{- end -}}

{{- define "penstock.brokerMebibytes" -}}
{{- $shared := include "penstock.sharedMebibytes" . | int64 -}}
{{- $requests := include "penstock.mebibytes" .Values.broker.requestMemory | int64 -}}
{{- add $shared $requests (include "penstock.mebibytes" .Values.broker.overheadMemory | int64) -}}
{{- end -}}

{{- define "penstock.headless" -}}
{{ include "penstock.name" . }}-brokers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "penstock.servers" -}}
{{ include "penstock.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:9092
{{- end -}}

{{- define "penstock.master" -}}
spark://{{ include "penstock.name" . }}-spark-master.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:7077
{{- end -}}

{{- define "penstock.masterUi" -}}
http://{{ include "penstock.name" . }}-spark-master.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:8080
{{- end -}}

{{- define "penstock.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $hosts := list -}}
{{- range $index := until (int .Values.etcd.replicas) -}}
{{- $name := printf "%s-etcd" (include "penstock.name" $) -}}
{{- $hosts = append $hosts (printf "http://%s-%d.%s.%s.svc.%s:2379" $name $index $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- else -}}
{{- if not .Values.etcd.endpoints }}{{ fail "etcd.endpoints: name the etcd to use, or set etcd.enabled" }}{{ end -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end -}}

{{- define "penstock.etcdPrefix" -}}
{{ .Values.etcd.prefix | default (printf "/%s/%s" .Release.Namespace .Release.Name) }}
{{- end -}}

{{/* Annotations for a Prometheus that looks for them; call with (list . port path). */}}
{{- define "penstock.scrape" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.monitoring.annotations }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ index . 1 | quote }}
prometheus.io/path: {{ index . 2 | quote }}
{{- end }}
{{- end -}}

{{- define "penstock.claim" -}}
{{- $storage := . -}}
accessModes: [ReadWriteOnce]
{{- if not (kindIs "invalid" $storage.storageClass) }}
storageClassName: {{ $storage.storageClass | quote }}
{{- end }}
resources: {requests: {storage: {{ $storage.size }}}}
{{- end -}}

{{/* A driver's pod: spark-submit with what this cluster needs; call with (list . job), the program and its arguments follow. */}}
{{- define "penstock.submit" -}}
{{- $root := index . 0 -}}
{{- $job := index . 1 -}}
{{- $cores := $job.executorCores | default 1 | int -}}
- sh
- -ec
# An executor for each worker, once all are there: one that comes later would get none. The driver's class path is
# fixed before a program can say anything: the connector must be on it by then.
- |
  penstock spark wait {{ include "penstock.masterUi" $root }} --workers {{ $root.Values.broker.replicas }}
  exec spark-submit --jars "$(penstock spark jar)" "$@"
- spark-submit
- --master={{ include "penstock.master" $root }}
- --conf=spark.driver.host=$(POD_IP)
- --conf=spark.driver.bindAddress=0.0.0.0
- --conf=spark.executor.cores={{ $cores }}
- --conf=spark.cores.max={{ mul $cores (int $root.Values.broker.replicas) }}
- --conf=spark.executor.memory={{ $job.executorMemory | default "512m" }}
- --conf=spark.driver.memory={{ $job.driverMemory | default "512m" }}
{{- range $name, $value := $job.confs }}
- {{ printf "--conf=%s=%v" $name $value | quote }}
{{- end }}
{{- end -}}

{{- define "penstock.driverEnv" -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: HOME, value: /tmp}
- {name: SPARK_LOCAL_DIRS, value: /var/lib/spark}
{{- end -}}
