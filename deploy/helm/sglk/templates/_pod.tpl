{{- define "sglk.labels" -}}
app.kubernetes.io/name: sglk
app.kubernetes.io/part-of: {{ .Values.name }}
{{- end }}

{{- /* A deployment: root, name, replicas, args, resources (may be absent), mounts and volumes as YAML text. */ -}}
{{- define "sglk.deployment" -}}
{{- $values := .root.Values -}}
{{- $scheme := ternary "HTTPS" "" $values.tls -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "sglk.labels" .root | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
  selector:
    matchLabels:
      app.kubernetes.io/name: sglk
      app.kubernetes.io/instance: {{ .name }}
  template:
    metadata:
      labels:
        app.kubernetes.io/instance: {{ .name }}
        {{- include "sglk.labels" .root | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: {{ add $values.drainSeconds 5 }}
      enableServiceLinks: false
      containers:
        - name: sglk
          image: {{ $values.image | quote }}
          command: [sglk]
          args:
            {{- range .args }}
            - {{ . | replace "$" "$$" | quote }}
            {{- end }}
          ports:
            - name: http
              containerPort: {{ $values.port }}
          startupProbe:
            httpGet: {path: /health_generate, port: http{{ with $scheme }}, scheme: {{ . }}{{ end }}}
            periodSeconds: {{ $values.probePeriodSeconds }}
            timeoutSeconds: 25
            failureThreshold: {{ $values.startFailures }}
          readinessProbe:
            httpGet: {path: /health, port: http{{ with $scheme }}, scheme: {{ . }}{{ end }}}
            periodSeconds: {{ $values.probePeriodSeconds }}
            timeoutSeconds: 5
            failureThreshold: 2
          livenessProbe:
            tcpSocket: {port: http}
            periodSeconds: {{ $values.probePeriodSeconds }}
            failureThreshold: 6
          lifecycle:
            preStop:
              exec: {command: [sleep, "5"]}
          {{- if $values.files }}
          workingDir: /etc/sglk
          {{- end }}
          {{- with $values.keys }}
          env:
            {{- range . }}
            - name: {{ . }}
              valueFrom:
                secretKeyRef: {name: {{ $values.name }}-keys, key: {{ . }}}
            {{- end }}
          {{- end }}
          {{- if hasKey . "resources" }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          {{- end }}
          volumeMounts:
            {{- .mounts | nindent 12 }}
      volumes:
        {{- .volumes | nindent 8 }}
{{- end }}

{{- define "sglk.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "sglk.labels" .root | nindent 4 }}
spec:
  selector:
    app.kubernetes.io/name: sglk
    app.kubernetes.io/instance: {{ .name }}
  ports:
    - name: http
      port: {{ .root.Values.port }}
      targetPort: http
{{- end }}

{{- define "sglk.configMount" -}}
name: config
mountPath: /etc/sglk
{{- end }}

{{- define "sglk.configVolume" -}}
name: config
configMap:
  name: {{ .Values.name }}-config
  items:
    {{- range .Values.files }}
    - key: {{ .key }}
      path: {{ .path }}
    {{- end }}
{{- end }}
