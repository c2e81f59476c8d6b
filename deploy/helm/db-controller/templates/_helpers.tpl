{{- define "db-controller.labels" -}}
app.kubernetes.io/name: db-controller
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "db-controller.registry" -}}
{{- if .Values.registryAddress -}}
{{ .Values.registryAddress }}
{{- else if .Values.registry.enabled -}}
{{ .Release.Name }}-registry.{{ .Release.Namespace }}.svc:7000
{{- else -}}
{{ fail "registryAddress is empty and registry.enabled is false: name the registry, or run one" }}
{{- end -}}
{{- end }}

{{- /* The values of one entry of deployments, or of the registry, over those of the whole chart, as YAML: a dict of root and of. */ -}}
{{- define "db-controller.values" -}}
{{- $all := pick .root.Values "service" "resources" "env" "envFrom" "extraVolumes" "extraVolumeMounts" "podLabels" "podAnnotations" "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{ mergeOverwrite (deepCopy $all) (deepCopy .of) | toYaml }}
{{- end }}

{{- /* The address of a deployment for the others: a dict of root, object, values. */ -}}
{{- define "db-controller.advertise" -}}
{{- $dns := index .values.service.annotations "external-dns.alpha.kubernetes.io/hostname" -}}
{{- if .values.advertise -}}
{{ .values.advertise }}
{{- else if $dns -}}
{{ $dns }}:7001
{{- else if eq .values.service.type "LoadBalancer" -}}
{{ fail (printf "deployments %s: a Service of type LoadBalancer needs advertise (host:port), or the annotation external-dns.alpha.kubernetes.io/hostname" .values.name) }}
{{- else -}}
{{ .object }}.{{ .root.Release.Namespace }}.svc:7001
{{- end -}}
{{- end }}

{{- /* The settings of a process that the registry has as well, and further ones of the values: a dict of root, values. */ -}}
{{- define "db-controller.settings" -}}
postgres-file: /run/postgres/postgres
certs: {{ ternary (printf "unix:///spiffe-workload-api/%s" .root.Values.spiffe.socket) "/run/certificates" .root.Values.spiffe.enabled }}
http: ":8080"
{{- if eq .root.Values.migrate "process" }}
migrate: true
{{- end }}
{{- if .values.tokensSecret }}
tokens: /run/tokens/tokens.yaml
{{- end }}
{{- with .values.settings }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The fields of all pods: a dict of root, values. */ -}}
{{- define "db-controller.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with index $.values $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The fields of all containers: of the same dict. */ -}}
{{- define "db-controller.container" -}}
{{- with .root.Values.image -}}
image: {{ ternary (printf "%s@%s" .repository .digest) (printf "%s:%s" .repository (.tag | default $.root.Chart.AppVersion)) (ne .digest "") | quote }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- range $field := list "resources" "env" "envFrom" }}
{{- with index $.values $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The processes of one component: a dict of root, component, object (its name), command, config, set (of migrations), ports, values. */ -}}
{{- define "db-controller.workload" -}}
{{- $values := .values -}}
{{- if eq .root.Values.migrate "job" -}}
{{- include "db-controller.migration" . }}
---
{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
data:
  db-controller.yaml: |
    {{- toYaml .config | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
spec:
  replicas: {{ $values.replicas | default 2 }}
  selector:
    matchLabels: {{- include "db-controller.labels" . | nindent 6 }}
  strategy:
    rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }
  template:
    metadata:
      labels:
        {{- include "db-controller.labels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ toYaml .config | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "db-controller.pod" . | nindent 6 }}
      serviceAccountName: {{ .root.Release.Name }}-db-controller
      # Longer than --stop-timeout.
      terminationGracePeriodSeconds: 15
      containers:
        - name: db-controller
          {{- include "db-controller.container" . | nindent 10 }}
          args: [{{ .command }}, --config=/etc/db-controller/db-controller.yaml]
          ports:
            {{- range $name, $port := .ports }}
            - { name: {{ $name }}, containerPort: {{ $port }} }
            {{- end }}
          # A region that is down must not take this one out of service: readiness does not depend on other deployments.
          readinessProbe:
            httpGet: { path: /readyz, port: http }
            periodSeconds: 5
            timeoutSeconds: 3
          livenessProbe:
            httpGet: { path: /livez, port: http }
            periodSeconds: 10
            failureThreshold: 6
          startupProbe:
            httpGet: { path: /livez, port: http }
            periodSeconds: 2
            failureThreshold: 90
          volumeMounts:
            - { name: config, mountPath: /etc/db-controller, readOnly: true }
            - { name: certificates, mountPath: {{ ternary "/spiffe-workload-api" "/run/certificates" .root.Values.spiffe.enabled }}, readOnly: true }
            - { name: postgres, mountPath: /run/postgres, readOnly: true }
            {{- if $values.tokensSecret }}
            - { name: tokens, mountPath: /run/tokens, readOnly: true }
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap: { name: {{ .object }} }
        - name: certificates
          {{- if .root.Values.spiffe.enabled }}
          csi: { driver: {{ .root.Values.spiffe.csiDriver }}, readOnly: true }
          {{- else }}
          secret: { secretName: {{ required (printf "%s: certificatesSecret is empty, and spiffe.enabled is false" .component) $values.certificatesSecret }}, defaultMode: 0440 }
          {{- end }}
        - name: postgres
          secret: { secretName: {{ required (printf "%s: postgresSecret is empty" .component) $values.postgresSecret }}, defaultMode: 0440 }
        {{- if $values.tokensSecret }}
        - name: tokens
          secret: { secretName: {{ $values.tokensSecret }}, defaultMode: 0440 }
        {{- end }}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        - {{- toYaml . | nindent 10 }}
          labelSelector:
            matchLabels: {{- include "db-controller.labels" $ | nindent 14 }}
        {{- end }}
      {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
  {{- with $values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $values.service.type }}
  {{- if eq $values.service.type "LoadBalancer" }}
  {{- range $field := list "loadBalancerClass" "loadBalancerSourceRanges" "externalTrafficPolicy" }}
  {{- with index $values.service $field }}
  {{- dict $field . | toYaml | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- end }}
  selector: {{- include "db-controller.labels" . | nindent 4 }}
  ports:
    {{- range $name, $port := omit .ports "http" }}
    - { name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }} }
    {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "db-controller.labels" . | nindent 6 }}
{{- with .root.Values.networkPolicy }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $.object }}
  labels: {{- include "db-controller.labels" $ | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "db-controller.labels" $ | nindent 6 }}
  policyTypes: [Ingress{{ if .egress }}, Egress{{ end }}]
  ingress:
    # Every caller proves an identity on these ports.
    - ports:
        {{- range omit $.ports "http" }}
        - { port: {{ . }} }
        {{- end }}
    {{- with .metricsFrom }}
    - ports: [{ port: 8080 }]
      from:
        - podSelector:
            matchLabels: {{- toYaml . | nindent 14 }}
          namespaceSelector: {}
    {{- end }}
  {{- with .egress }}
  egress:
    - ports: [{ port: 53, protocol: UDP }, { port: 53 }, { port: 7000 }, { port: 7001 }]
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The migration of a database before its processes are started or replaced: of the same dict. */ -}}
{{- define "db-controller.migration" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .object }}-migrate
  labels: {{- include "db-controller.labels" . | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: {{ ternary "-1" "0" (eq .set "registry") | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 4
  template:
    metadata:
      labels:
        app.kubernetes.io/name: db-controller
        app.kubernetes.io/instance: {{ .root.Release.Name }}
        app.kubernetes.io/component: {{ .component }}-migrate
    spec:
      {{- include "db-controller.pod" . | nindent 6 }}
      restartPolicy: Never
      containers:
        - name: migrate
          {{- include "db-controller.container" . | nindent 10 }}
          args:
            - migrate
            - up
            - --set={{ .set }}
            - --postgres-file=/run/postgres/postgres
            - --roles
            - --role-prefix={{ .values.rolePrefix | default (.component | replace "-" "_") }}
          volumeMounts:
            - { name: postgres, mountPath: /run/postgres, readOnly: true }
            {{- with .values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: postgres
          secret: { secretName: {{ required (printf "%s: postgresOwnerSecret is empty; migrate: job needs it, migrate: process migrates by postgresSecret" .component) .values.postgresOwnerSecret }}, defaultMode: 0440 }
        {{- with .values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}
