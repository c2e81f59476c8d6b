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

{{- /* The pods of one component: a dict of root, component, object (its name), args, settings, certificates, postgres, tokens, ports, replicas, resources. */ -}}
{{- define "db-controller.workload" -}}
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
  replicas: {{ .replicas }}
  selector:
    matchLabels: {{- include "db-controller.labels" . | nindent 6 }}
  strategy:
    rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }
  template:
    metadata:
      labels: {{- include "db-controller.labels" . | nindent 8 }}
      annotations:
        checksum/config: {{ toYaml .config | sha256sum }}
        {{- with .root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ .root.Release.Name }}-db-controller
      automountServiceAccountToken: false
      # Longer than --stop-timeout.
      terminationGracePeriodSeconds: 15
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: { type: RuntimeDefault }
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: db-controller
          image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
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
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: { drop: [ALL] }
          resources: {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - { name: config, mountPath: /etc/db-controller, readOnly: true }
            - { name: certificates, mountPath: /run/certificates, readOnly: true }
            - { name: postgres, mountPath: /run/postgres, readOnly: true }
            {{- if .tokens }}
            - { name: tokens, mountPath: /run/tokens, readOnly: true }
            {{- end }}
      volumes:
        - name: config
          configMap: { name: {{ .object }} }
        - name: certificates
          secret: { secretName: {{ .certificates }}, defaultMode: 0440 }
        - name: postgres
          secret: { secretName: {{ .postgres }}, defaultMode: 0440 }
        {{- if .tokens }}
        - name: tokens
          secret: { secretName: {{ .tokens }}, defaultMode: 0440 }
        {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "db-controller.labels" . | nindent 14 }}
      {{- with .root.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
spec:
  selector: {{- include "db-controller.labels" . | nindent 4 }}
  ports:
    {{- range $name, $port := .ports }}
    {{- if ne $name "http" }}
    - { name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }} }
    {{- end }}
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
{{- if .root.Values.metricsFrom }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .object }}
  labels: {{- include "db-controller.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "db-controller.labels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    # Everybody proves who they are on these ports.
    - ports:
        {{- range $name, $port := .ports }}
        {{- if ne $name "http" }}
        - { port: {{ $port }} }
        {{- end }}
        {{- end }}
    - ports: [{ port: 8080 }]
      from:
        - podSelector:
            matchLabels: {{- toYaml .root.Values.metricsFrom | nindent 14 }}
          namespaceSelector: {}
{{- end }}
{{- end }}
