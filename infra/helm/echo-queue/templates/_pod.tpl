{{/* Labels of one part of the run. Takes (dict "root" $ "part" name). */}}
{{- define "echo-queue.labels" -}}
app.kubernetes.io/name: echo-queue
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/*
The pod of one role. Takes a dict:
  root: $          part: name of the part       role: its user of Redis and of the store
  image: image     command, args: lists         health: what `echo-queue healthy` is asked, or empty
  settings: gpus, env, resources, nodeSelector, tolerations, gracePeriodSeconds, sharedMemory
  state: size of a folder that ends with the pod, or empty if a claim named `state` is mounted
  port: the port on which it listens, or 0      roles: further roles whose passwords it needs
  token: whether it may speak to Kubernetes     fleet: whether it reads the fleet file
*/}}
{{- define "echo-queue.pod" -}}
{{- $root := .root -}}
{{- $roles := prepend (.roles | default list) .role -}}
serviceAccountName: {{ $root.Release.Name }}-{{ .role }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .settings.gracePeriodSeconds | default 60 }}
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .role }}
    image: {{ .image }}
    {{- with .command }}
    command: {{ toJson . }}
    {{- end }}
    args: {{ toJson .args }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    env:
      - {name: ECHO_QUEUE_CONFIG, value: /etc/echo-queue/run.toml}
      - {name: ECHO_QUEUE_RUN__DIR, value: /var/lib/echo-queue/run}
      - {name: ECHO_QUEUE_REDIS__URL, value: {{ required "redis.url: name the address of Redis" $root.Values.redis.url | quote }}}
      - {name: ECHO_QUEUE_REDIS__USERNAME, value: {{ $root.Values.redis.username | quote }}}
      - {name: ECHO_QUEUE_STORE__URL, value: {{ required "store.url: name the address of the bucket's S3 service" $root.Values.store.url | quote }}}
      - {name: ECHO_QUEUE_STORE__BUCKET, value: {{ $root.Values.store.bucket | quote }}}
      {{- with $root.Values.store.region }}
      - {name: ECHO_QUEUE_STORE__REGION, value: {{ . | quote }}}
      {{- end }}
      {{- if $root.Values.redis.authority }}
      - {name: ECHO_QUEUE_REDIS__CA_FILE, value: /etc/echo-queue/ca.pem}
      {{- end }}
      {{- range $roles }}
      - {name: ECHO_QUEUE_{{ upper . }}_REDIS_PASSWORD_FILE, value: /run/secrets/{{ . }}/redis-password}
      {{- end }}
      {{- if and $root.Values.storeKeys (ne .role "controller") }}
      - {name: ECHO_QUEUE_{{ upper .role }}_STORE_ACCESS_KEY_FILE, value: /run/secrets/{{ .role }}/store-access-key}
      - {name: ECHO_QUEUE_{{ upper .role }}_STORE_SECRET_KEY_FILE, value: /run/secrets/{{ .role }}/store-secret-key}
      {{- end }}
      {{- if eq .role "worker" }}
      - {name: ECHO_QUEUE_ROLLOUT__MACHINE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      {{- end }}
      {{- range $name, $value := .settings.env }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
    {{- if .port }}
    ports:
      - {name: peers, containerPort: {{ .port }}}
    {{- end }}
    {{- with .health }}
    startupProbe:
      exec: {command: [echo-queue, healthy, {{ . }}]}
      periodSeconds: 10
      timeoutSeconds: 10
      failureThreshold: 360
    livenessProbe:
      exec: {command: [echo-queue, healthy, {{ . }}]}
      periodSeconds: 15
      timeoutSeconds: 10
      failureThreshold: 2
    {{- end }}
    resources:
      requests: {{- toYaml .settings.resources.requests | nindent 8 }}
      limits: {{- toYaml .settings.resources.limits | nindent 8 }}
        {{- with .settings.gpus }}
        nvidia.com/gpu: {{ . }}
        {{- end }}
    volumeMounts:
      - {name: config, mountPath: /etc/echo-queue, readOnly: true}
      {{- if .fleet }}
      - {name: fleet, mountPath: /etc/echo-queue-fleet, readOnly: true}
      {{- end }}
      - {name: state, mountPath: /var/lib/echo-queue}
      - {name: tmp, mountPath: /tmp}
      {{- if .settings.sharedMemory }}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- end }}
      {{- range $roles }}
      - {name: secret-{{ . }}, mountPath: /run/secrets/{{ . }}, readOnly: true}
      {{- end }}
volumes:
  - name: config
    configMap: {name: {{ $root.Release.Name }}-config}
  {{- if .fleet }}
  - name: fleet
    configMap: {name: {{ $root.Release.Name }}-fleet}
  {{- end }}
  - name: tmp
    emptyDir: {sizeLimit: 10Gi}
  {{- if .state }}
  - name: state
    emptyDir: {sizeLimit: {{ .state }}}
  {{- end }}
  {{- if .settings.sharedMemory }}
  - name: shared-memory
    emptyDir: {medium: Memory, sizeLimit: {{ .settings.sharedMemory }}}
  {{- end }}
  {{- range $roles }}
  - name: secret-{{ . }}
    secret:
      secretName: {{ required (printf "secrets.%s: name the Secret of this role" .) (index $root.Values.secrets .) }}
      defaultMode: 0440
      optional: false
  {{- end }}
{{- end -}}
