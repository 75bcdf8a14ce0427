{{/* Names of pods end in 16 characters of Kubernetes's own, and an instance's name has 63. */}}
{{- define "moorebus.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 20 | trimSuffix "-" -}}
{{- end }}

{{- define "moorebus.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with get . "component" }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "moorebus.labels" -}}
{{ include "moorebus.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "moorebus.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "moorebus.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "moorebus.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{/* The name that the chart of NATS gives its objects. */}}
{{- define "moorebus.nats" -}}
{{- $name := default "nats" (get .Values.nats "nameOverride") -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full (get .Values.nats "fullnameOverride") | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "moorebus.bus" -}}
{{- $chart := hasKey .Subcharts "nats" -}}
{{- if and $chart (not .Values.nats.enabled) }}{{ fail "charts/ has the chart of NATS, which would be installed too: remove it, or set nats.enabled" }}{{ end -}}
{{- if and .Values.nats.enabled (not $chart) }}{{ fail "nats.enabled needs the chart of NATS: helm pull nats --repo https://nats-io.github.io/k8s/helm/charts/ --version 2.14.2 -d CHART/charts, where CHART is the folder of this chart" }}{{ end -}}
{{- if .Values.nats.enabled -}}
{{- if .Values.bus.url }}{{ fail "bus.url names an external bus, and nats.enabled asks for one of this chart: use one of them" }}{{ end -}}
nats://{{ include "moorebus.nats" . }}.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{- required "name a bus with bus.url, or set nats.enabled" .Values.bus.url }}
{{- end }}
{{- end }}

{{/*
The Deployments, as JSON: component (which names it), role (the command), user (on the bus),
values, args, consumers (what wakes it), files (of its ConfigMap).
*/}}
{{- define "moorebus.roles" -}}
{{- $v := .Values -}}
{{- $gateway := list "--listen" ":8080" -}}
{{- if $v.gateway.insecureNoAuth }}
{{- $gateway = append $gateway "--insecure-no-auth" }}
{{- range concat (list (printf "%s-gateway" (include "moorebus.fullname" .)) (printf "%s-gateway.%s.svc" (include "moorebus.fullname" .) .Release.Namespace)) $v.gateway.ingress.hosts }}
{{- $gateway = concat $gateway (list "--host" .) }}
{{- end }}
{{- end }}
{{- $roles := list (dict "component" "gateway" "role" "gateway" "user" "gateway" "values" $v.gateway "args" $gateway "consumers" list "files" dict) -}}
{{- $files := dict -}}
{{- $args := list -}}
{{- with $v.planner.providers }}{{ $_ := set $files "providers.yaml" . }}{{ $args = concat $args (list "--providers" "/etc/moorebus/providers.yaml") }}{{ end -}}
{{- with $v.planner.prices }}{{ $_ := set $files "prices.yaml" . }}{{ $args = concat $args (list "--prices" "/etc/moorebus/prices.yaml") }}{{ end -}}
{{- $roles = append $roles (dict "component" "planner" "role" "planner" "user" "planner" "values" $v.planner "args" $args "consumers" (list "planning" "reflecting") "files" $files) -}}
{{- $roles = append $roles (dict "component" "observer" "role" "observer" "user" "observer" "values" $v.observer "args" list "consumers" (list "observing" "paging") "files" dict) -}}
{{- range $pool, $own := $v.actors.pools }}
{{- $values := mergeOverwrite (deepCopy (omit $v.actors "pools")) (deepCopy ($own | default dict)) }}
{{- $args := list "--pool" $pool }}
{{- $files := dict }}
{{- with $values.tools }}{{ $_ := set $files "tools.yaml" . }}{{ $args = concat $args (list "--tools" "/etc/moorebus/tools.yaml") }}{{ end }}
{{- if $values.services }}{{ $args = append $args "--services" }}{{ end }}
{{- $consumers := list (printf "acting_%s" $pool) }}
{{- if eq $pool "agents" }}{{ $consumers = concat $consumers (list "done_agents" "error_agents" "cancelled_agents") }}{{ end }}
{{- $roles = append $roles (dict "component" (printf "actor-%s" $pool) "role" "actor" "user" (printf "actor_%s" $pool) "values" $values "args" $args "consumers" $consumers "files" $files) }}
{{- end }}
{{- if $v.telemetry.enabled }}
{{- $roles = append $roles (dict "component" "telemetry" "role" "telemetry" "user" "telemetry" "values" $v.telemetry "args" list "consumers" list "files" dict) }}
{{- end }}
{{- range $roles }}
{{- $_ := set . "values" (merge (deepCopy .values) (dict "concurrency" 0 "secrets" list "autoscaling" (dict "enabled" false))) }}
{{- end }}
{{- toJson (dict "roles" $roles) }}
{{- end }}

{{/* What a process needs to reach the bus as .user. */}}
{{- define "moorebus.busEnv" -}}
- name: NATS_URL
  value: {{ include "moorebus.bus" .root | quote }}
{{- if .root.Values.bus.ca.secret }}
- name: NATS_CA
  value: /run/secrets/bus-ca/ca.pem
{{- end }}
{{- if .root.Values.bus.nkeys.secretPrefix }}
- name: NATS_NKEY
  value: /run/secrets/nkey/nkey
{{- if ne .user "operator" }}
- name: NATS_INBOX_PREFIX
  value: _INBOX_{{ .user }}
{{- end }}
{{- end }}
{{- end }}

{{- define "moorebus.busMounts" -}}
{{- if .root.Values.bus.ca.secret }}
- {name: bus-ca, mountPath: /run/secrets/bus-ca, readOnly: true}
{{- end }}
{{- if .root.Values.bus.nkeys.secretPrefix }}
- {name: nkey, mountPath: /run/secrets/nkey, readOnly: true}
{{- end }}
{{- end }}

{{- define "moorebus.busVolumes" -}}
{{- with .root.Values.bus.ca }}
{{- if .secret }}
- name: bus-ca
  secret:
    secretName: {{ .secret }}
    items: [{key: {{ .key }}, path: ca.pem}]
{{- end }}
{{- end }}
{{- with .root.Values.bus.nkeys }}
{{- if .secretPrefix }}
- name: nkey
  secret:
    secretName: {{ .secretPrefix }}{{ $.user | replace "_" "-" }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: nkey}]
{{- end }}
{{- end }}
{{- end }}

{{- define "moorebus.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "moorebus.containerSecurity" -}}
image: {{ include "moorebus.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
