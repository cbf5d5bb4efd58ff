#!/usr/bin/env bash
# What a machine of a run does outside its containers: `host STEP`, called by the units beside it.
#
# - Secrets come from the cloud's secret store at boot and lie in memory (/run), readable by root and the container's user.
# - A container sees its own role's password, never those of other roles, and no metadata server.
# - Every wait has a deadline that names what it waits for; a failed step ends with 1, and systemd starts it again.
# - A machine whose workers wait in vain for a learner, or fail for an hour on end, leaves its group: nobody pays for it.
# ECHO_QUEUE_ROOT: a folder that stands for / (tests).
set -euo pipefail

root=${ECHO_QUEUE_ROOT:-}
etc=$root/etc/echo-queue
run=$root/run/echo-queue
state=$root/var/lib/echo-queue
shared=$run/shared # what every container of the machine may read
idle=4             # exit code of a worker that has waited in vain for a learner (echo_queue/errors.py)
worked_s=1800      # a worker that lived longer has worked: an idle one ends by itself before (rollout.idle_deadline_s)
failing_s=3600     # for how long a machine may fail
# shellcheck source=/dev/null
. "$etc/host.env"

fail() {
  echo "echo-queue host: $*" >&2
  exit 1
}

# Repeats a command until it succeeds: within SECONDS WHAT COMMAND...
within() {
  local seconds=$1 what=$2 give_up
  shift 2
  give_up=$((SECONDS + seconds))
  until "$@"; do
    ((SECONDS < give_up)) || fail "waited $seconds s for $what"
    sleep 5
  done
}

# Writes standard input to a file that appears whole, for the containers' user alone.
put() {
  local file=$1
  (umask 077 && cat > "$file.new")
  chown "$CONTAINER_USER" "$file.new"
  mv "$file.new" "$file"
}

# Boot -----------------------------------------------------------------------------------------------------------------

folders() {
  mkdir -p "$shared" "$run/secrets" "$state/run" "$state/inputs" "$state/cache"
  chown "$CONTAINER_USER" "$shared" "$state/run" "$state/inputs" "$state/cache"
  chmod 711 "$run"
  chmod 700 "$run/secrets"
}

# The data volume is attached after the machine has started; it is formatted once, and never again.
mount_data() {
  local device=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${DATA_VOLUME/-/}
  within 600 "the volume $DATA_VOLUME" test -b "$device"
  [[ -n $(blkid -o value -s TYPE "$device") ]] || mkfs.ext4 -q -m 0 "$device"
  mkdir -p "$state"
  mountpoint -q "$state" || mount -o noatime "$device" "$state"
}

login_and_pull() {
  if [[ -n $REGISTRY ]]; then
    aws ecr get-login-password --region "$REGISTRY_REGION" | docker login --username AWS --password-stdin "$REGISTRY"
  fi
  docker pull --quiet "$1"
}

read_secret() {
  case $CLOUD in
    aws) aws secretsmanager get-secret-value --region "$SECRETS_REGION" --secret-id "$1" --query SecretString --output text ;;
    gcp) gcloud secrets versions access latest --secret="$1" ;;
  esac
}

# A role's secret has its password in the first line; after it comes the authority of Redis' certificate.
fetch_secret() {
  local role=$1 text
  text=$(read_secret "$2") && [[ -n $text ]] || return 1
  head -n 1 <<< "$text" | put "$run/secrets/$role"
  tail -n +2 <<< "$text" | put "$shared/ca.pem"
}

fetch_secrets() {
  local role
  for role in "${!SECRETS[@]}"; do
    within 900 "the secret of $role, which the Redis machine makes at its first boot" fetch_secret "$role" "${SECRETS[$role]}"
  done
  if [[ -n $STORE_ACCESS_SECRET ]]; then
    within 900 "the secret $STORE_ACCESS_SECRET" fetch_key access_key "$STORE_ACCESS_SECRET"
    within 900 "the secret $STORE_SECRET_SECRET" fetch_key secret_key "$STORE_SECRET_SECRET"
  fi
}

fetch_key() {
  local text
  text=$(read_secret "$2") && [[ -n $text ]] || return 1
  put "$run/secrets/$1" <<< "$text"
}

# The machine's role, for containers that reach no metadata server. botocore asks for them again before they expire.
credentials() {
  local text
  text=$(aws configure export-credentials --format process) || return 1 # what containers have is good for hours
  put "$shared/credentials.json" <<< "$text"
}

# Compute Engine has no hop limit: a container must not ask its metadata server for the machine's own token. Port 53 of
# the same address stays open, because it is the network's name server.
close_metadata() {
  local rule=(DOCKER-USER -d 169.254.169.254 -p tcp --dport 80 -j DROP)
  iptables -C "${rule[@]}" 2> /dev/null || iptables -I "${rule[@]}"
}

# systemd starts a step also after a boot that failed and is tried again: until it has succeeded, files are missing.
require_boot() {
  [[ -e $run/booted ]] || fail "this machine has not booted yet (journalctl -u echo-queue-boot)"
}

boot() {
  # shellcheck disable=SC2153 # it comes from host.env, as do those below
  [[ $ROLE != worker ]] || leave_after_an_hour boot "$(date +%s)"
  [[ -z $DATA_VOLUME ]] || mount_data
  folders
  within 900 "the image $IMAGE" login_and_pull "$IMAGE"
  case $CLOUD in
    aws) within 120 "the credentials of the machine's role" credentials ;;
    gcp) close_metadata ;;
  esac
  # shellcheck disable=SC2153 # it comes from host.env
  if [[ $ROLE == redis ]]; then
    within 900 "the image $REDIS_IMAGE" login_and_pull "$REDIS_IMAGE"
    make_redis
  else
    fetch_secrets
  fi
  touch "$run/booted"
}

# The end of a worker's machine ----------------------------------------------------------------------------------------

# A group replaces a machine that merely powers off; so it ends itself by its group, and makes the group smaller.
leave_group() {
  echo "echo-queue host: nothing needs this machine any more ($1): it leaves its group eq-$RUN-$POOL" >&2
  case $CLOUD in
    aws)
      # shellcheck disable=SC2153
      aws autoscaling terminate-instance-in-auto-scaling-group --region "$REGION" --should-decrement-desired-capacity \
        --instance-id "$(< "$root/var/lib/cloud/data/instance-id")" > /dev/null
      ;;
    gcp)
      gcloud compute instance-groups managed delete-instances "eq-$RUN-$POOL" --region="$REGION" \
        --instances="$(hostname -s)" --quiet
      ;;
  esac
}

# Notes that WHAT failed, which began at the time BEGAN. Leaves the group if it has failed for too long.
leave_after_an_hour() {
  local what=$1 began=$2 now since
  now=$(date +%s)
  mkdir -p "$run"
  since=$(cat "$run/failing-$what" 2> /dev/null) || since=$began
  ((now - began < worked_s)) || since=$now
  echo "$since" > "$run/failing-$what"
  ((now - since < failing_s)) || unneeded "$what" "$what has failed for an hour"
}

# Leaves the group once the same is true of every worker of the machine. Those that wait end within minutes of one another.
unneeded() {
  touch "$run/unneeded-$1"
  if [[ $1 != boot ]] && (($(find "$run" -maxdepth 1 -name 'unneeded-*' -mmin -20 | wc -l) < GPUS)); then
    return 0
  fi
  leave_group "$2"
}

# What follows when worker NUMBER has ended, with systemd's EXIT_STATUS; systemd starts it again, unless it ended with 0.
worker_ended() {
  local number=$1 began
  began=$(cat "$run/began-$number" 2> /dev/null) || return 0 # the boot failed, which is counted there
  case ${EXIT_STATUS:-0} in
    0) rm -f "$run/failing-$number" ;;
    "$idle") unneeded "$number" "its workers have waited in vain for a learner" ;;
    *) leave_after_an_hour "$number" "$began" ;;
  esac
}

# Containers -----------------------------------------------------------------------------------------------------------

# Runs a command of the product in the foreground: contain NAME ROLE [OPTION...] -- PROGRAM ARGUMENT...
# Torch and Triton load what they compile from /tmp, and ask for the name of the user, which the image need not know.
contain() {
  require_boot
  local name=$1 role=$2 options=()
  shift 2
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  options+=(--env "ECHO_QUEUE_${role^^}_REDIS_PASSWORD_FILE=$run/secrets/$role" --volume "$run/secrets/$role:$run/secrets/$role:ro")
  if [[ -n $STORE_ACCESS_SECRET ]]; then
    local key
    for key in access_key secret_key; do
      options+=(--env "ECHO_QUEUE_${role^^}_STORE_${key^^}_FILE=$run/secrets/$key" --volume "$run/secrets/$key:$run/secrets/$key:ro")
    done
  fi
  local program=$1
  shift
  docker rm --force "$name" > /dev/null 2>&1 || true
  exec docker run --rm --name "$name" --user "$CONTAINER_USER" --read-only --tmpfs /tmp:exec --cap-drop ALL \
    --security-opt no-new-privileges --shm-size 8g --stop-timeout "$STOP_S" --env-file "$etc/run.env" \
    --volume "$etc:$etc:ro" --volume "$shared:$shared:ro" --volume "$state/run:$state/run" \
    --volume "$state/inputs:$state/inputs:ro" --volume "$state/cache:$state/cache" --workdir "$state/inputs" \
    "${options[@]}" --entrypoint "$program" "$IMAGE" "$@"
}

worker() {
  local number=$1 port machine options=()
  port=$((PEER_PORT + number))
  machine=$(< "$root/var/lib/cloud/data/instance-id")
  require_boot
  date +%s > "$run/began-$number"
  ((GPUS == 0)) || options+=(--gpus "device=$number")
  contain "worker-$number" worker "${options[@]}" --publish "$port:$port" --env "ECHO_QUEUE_WEIGHTS__PEER_PORT=$port" \
    --env "ECHO_QUEUE_WEIGHTS__PEER_HOST=$(hostname -I | cut -d ' ' -f 1)" \
    --env "ECHO_QUEUE_RUN__DIR=$state/run/$number" \
    --env "ECHO_QUEUE_ROLLOUT__POOL=$POOL" --env "ECHO_QUEUE_ROLLOUT__MACHINE=$machine" \
    -- echo-queue worker "$etc/run.toml" --name "$POOL-$machine-$number"
}

# The only container that reaches the metadata server: it shares the machine's network, so that one hop is enough.
watch_notices() {
  require_boot
  docker rm --force notices > /dev/null 2>&1 || true
  exec docker run --rm --name notices --user "$CONTAINER_USER" --read-only --tmpfs /tmp --cap-drop ALL \
    --security-opt no-new-privileges --network host --volume "$etc:$etc:ro" --volume "$shared:$shared" \
    --env "ECHO_QUEUE_ROLLOUT__PREEMPTION__WATCH=$CLOUD" --env "ECHO_QUEUE_ROLLOUT__PREEMPTION__ENDPOINT=$METADATA" \
    --entrypoint echo-queue "$IMAGE" notices "$etc/run.toml" "$shared/notice"
}

# The learner's machine ------------------------------------------------------------------------------------------------

services() {
  contain services admin -- echo-queue services "$etc/run.toml"
}

submission() {
  contain submission submitter --volume "$run/secrets/celery:$run/secrets/celery:ro" \
    --env "ECHO_QUEUE_CELERY_REDIS_PASSWORD_FILE=$run/secrets/celery" --env "ECHO_QUEUE_CONFIG=$etc/run.toml" \
    -- python3 -P -m echo_queue.launch.entry celery -A echo_queue.submission worker
}

# Prompts that are files come from the bucket. They may arrive after the machine: systemd starts this step again.
submit() {
  aws s3 sync --only-show-errors "s3://$BUCKET/$RUN/inputs" "$state/inputs"
  chown -R "$CONTAINER_USER" "$state/inputs"
  contain submit submitter --volume "$run/secrets/celery:$run/secrets/celery:ro" \
    --env "ECHO_QUEUE_CELERY_REDIS_PASSWORD_FILE=$run/secrets/celery" -- echo-queue submit "$etc/run.toml"
}

learner() {
  local options=()
  ((GPUS == 0)) || options+=(--gpus all)
  if [[ $(sed -n 's/^base *= *"\([^"]*\)".*/\1/p' "$etc/run.toml") =~ ^(init)?$ ]]; then # model.base, "init" by default
    (contain init-model learner "${options[@]}" -- echo-queue init-model "$etc/run.toml")
  fi
  contain learner learner "${options[@]}" -- echo-queue learner "$etc/run.toml"
}

# The learner writes its model when the run is finished. The model goes to the bucket, and then every pool to nothing.
finish() {
  [[ -d $state/run/model ]] || return 0
  aws s3 cp --only-show-errors --recursive "$state/run/model" "s3://$BUCKET/$RUN/model"
  local region group
  aws s3 cp --only-show-errors "s3://$BUCKET/$RUN/groups" - | while read -r region group; do
    aws autoscaling set-desired-capacity --region "$region" --auto-scaling-group-name "$group" --desired-capacity 0 ||
      echo "echo-queue host: the pool $group keeps its machines" >&2
  done
}

# What a person who looks may ask: `host monitor status`.
monitor() {
  contain "monitor-$$" monitor -- echo-queue "$1" "$etc/run.toml"
}

# The Redis machine ----------------------------------------------------------------------------------------------------

make_certificates() {
  mkdir -p "$state/tls"
  cd "$state/tls"
  umask 077
  if [[ ! -e ca.pem ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=echo-queue $RUN" \
      -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" -keyout ca.key -out ca.new
    mv ca.new ca.pem
  fi
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=redis" -keyout redis.key -out redis.csr
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$CERTIFICATE_NAMES" > redis.ext
  openssl x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile redis.ext -out redis.pem
  chown "$CONTAINER_USER" redis.key redis.pem ca.pem
  cd / && umask 022
}

# Keeps a role's password if it has one, so that a new machine changes none, and makes one otherwise.
make_secret() {
  local role=$1 secret=$2 before password
  if ! before=$(read_secret "$secret" 2> "$run/refusal"); then
    grep -q ResourceNotFoundException "$run/refusal" || return 1 # any other refusal says nothing about the password
    before=
  fi
  password=$(head -n 1 <<< "$before")
  [[ -n $password ]] || password=$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')
  put "$run/secrets/$role" <<< "$password"
  if [[ $(tail -n +2 <<< "$before") != "$(< "$state/tls/ca.pem")" ]]; then
    cat "$run/secrets/$role" "$state/tls/ca.pem" | put "$run/secrets/$role.secret"
    aws secretsmanager put-secret-value --region "$SECRETS_REGION" --secret-id "$secret" \
      --secret-string "file://$run/secrets/$role.secret" > /dev/null || return 1
    rm "$run/secrets/$role.secret"
  fi
}

make_redis() {
  local role options=()
  make_certificates
  for role in "${!SECRETS[@]}"; do
    within 300 "the right to write the secret of $role" make_secret "$role" "${SECRETS[$role]}"
    options+=(--env "ECHO_QUEUE_${role^^}_REDIS_PASSWORD_FILE=$run/secrets/$role" --volume "$run/secrets/$role:$run/secrets/$role:ro")
  done
  docker run --rm --user "$CONTAINER_USER" --read-only --network none --volume "$etc:$etc:ro" \
    --env "ECHO_QUEUE_REDIS__USERNAME={role}" "${options[@]}" --entrypoint echo-queue "$IMAGE" redis-users "$etc/run.toml" | put "$run/users.acl"
  mkdir -p "$state/redis"
  chown "$CONTAINER_USER" "$state/redis"
}

redis() {
  require_boot
  docker rm --force redis > /dev/null 2>&1 || true
  exec docker run --rm --name redis --user "$CONTAINER_USER" --read-only --cap-drop ALL \
    --security-opt no-new-privileges --stop-timeout "$STOP_S" --publish "$REDIS_PORT:$REDIS_PORT" \
    --volume "$etc:$etc:ro" --volume "$run/users.acl:$run/users.acl:ro" --volume "$state:$state" \
    --entrypoint redis-server "$REDIS_IMAGE" "$etc/redis.conf" --dir "$state/redis" --aclfile "$run/users.acl" \
    --tls-cert-file "$state/tls/redis.pem" --tls-key-file "$state/tls/redis.key" --tls-ca-cert-file "$state/tls/ca.pem"
}

case ${1:-} in
  boot | credentials | worker | worker_ended | watch_notices | services | submission | submit | learner | finish | monitor | redis) "$@" ;;
  *) fail "there is no step ${1:-}" ;;
esac
