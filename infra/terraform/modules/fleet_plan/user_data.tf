locals {
  programs = {
    "/usr/local/lib/echo-queue/host" = { text = file("${path.module}/host/host.sh"), mode = "0755" }
  }

  # Facts, no secrets: every process of a machine can read its user data.
  run_env = merge(
    {
      HOME                       = "/var/lib/echo-queue/cache"
      LOGNAME                    = "echo-queue"
      ECHO_QUEUE_RUN__DIR        = "/var/lib/echo-queue/run"
      ECHO_QUEUE_REDIS__URL      = "rediss://${var.redis_host}:${local.redis_port}/0"
      ECHO_QUEUE_REDIS__USERNAME = "{role}"
      ECHO_QUEUE_REDIS__CA_FILE  = "/run/echo-queue/shared/ca.pem"
      ECHO_QUEUE_STORE__URL      = "https://s3.${var.store_region}.amazonaws.com"
      ECHO_QUEUE_STORE__BUCKET   = var.bucket
      ECHO_QUEUE_STORE__REGION   = var.store_region
      ECHO_QUEUE_WEIGHTS__REGION = "${var.cloud}-${var.region}"
    },
    var.cloud == "aws" ? { AWS_CONFIG_FILE = "/etc/echo-queue/aws.conf", AWS_EC2_METADATA_DISABLED = "true" } : {},
  )
  worker_env = {
    ECHO_QUEUE_ROLLOUT__PREEMPTION__WATCH = "file"
    ECHO_QUEUE_ROLLOUT__PREEMPTION__FILE  = "/run/echo-queue/shared/notice"
  }

  names = compact([var.redis_host, var.redis_public_host])
  host_env = {
    CLOUD               = var.cloud
    RUN                 = var.run_name
    REGION              = var.region
    IMAGE               = var.image
    REDIS_IMAGE         = coalesce(var.redis_image, "none")
    REGISTRY            = local.ecr_repository == null ? "" : split("/", var.image)[0]
    REGISTRY_REGION     = local.ecr_repository == null ? "" : local.ecr_repository[1]
    BUCKET              = var.bucket
    SECRETS_REGION      = var.region
    STORE_ACCESS_SECRET = try(var.store_secrets.access_key, "")
    STORE_SECRET_SECRET = try(var.store_secrets.secret_key, "")
    CONTAINER_USER      = "10001:10001"
    PEER_PORT           = local.peer_ports.first
    REDIS_PORT          = local.redis_port
    CERTIFICATE_NAMES   = join(",", [for name in local.names : "IP:${name}"])
    METADATA            = ""
    POOL                = ""
    GPUS                = 0
    DATA_VOLUME         = ""
    STOP_S              = 30
  }

  # The roles of a machine, and the steps of `host` that systemd keeps running on it.
  roles = {
    worker  = ["worker"]
    learner = ["admin", "submitter", "celery", "learner", "monitor"]
    redis   = ["admin", "submitter", "worker", "learner", "monitor", "celery", "controller"]
  }
  machines = merge(
    { for name, pool in local.pools : "pool/${name}" => {
      role  = "worker"
      host  = { POOL = name, GPUS = pool.gpus, STOP_S = var.cloud == "aws" ? 110 : 25 }
      env   = local.worker_env
      steps = merge({ notices = "watch_notices" }, { for number in range(pool.workers) : "worker-${number}" => "worker ${number}" })
    } },
    {
      learner = {
        role  = "learner"
        host  = { GPUS = var.learner_gpus, DATA_VOLUME = try(var.data_volumes["learner"], ""), STOP_S = 600 }
        env   = {}
        steps = { services = "services", submission = "submission", submit = "submit", learner = "learner" }
      }
      redis = {
        role  = "redis"
        host  = { DATA_VOLUME = try(var.data_volumes["redis"], "") }
        env   = {}
        steps = { redis = "redis" }
      }
    },
  )

  files = { for name, machine in local.machines : name => merge(
    local.programs,
    {
      # Redis needs the run's name alone: no other change of the configuration is to replace its machine.
      "/etc/echo-queue/run.toml" = {
        text = machine.role == "redis" ? "[run]\nname = \"${var.run_name}\"\ndir = \"run\"\n" : var.config
        mode = "0644"
      }
      "/etc/echo-queue/run.env" = {
        text = join("", [for key, value in merge(local.run_env, machine.env) : "${key}=${value}\n"])
        mode = "0644"
      }
      "/etc/echo-queue/host.env" = {
        text = templatefile("${path.module}/host/host.env.tftpl", {
          values  = merge(local.host_env, machine.host, { ROLE = machine.role })
          secrets = { for role in local.roles[machine.role] : role => var.secrets[role] if contains(keys(var.secrets), role) }
        })
        mode = "0644"
      }
      "/etc/systemd/system/echo-queue-boot.service" = { text = file("${path.module}/host/boot.service"), mode = "0644" }
    },
    { for step, command in machine.steps : "/etc/systemd/system/echo-queue-${step}.service" => {
      text = templatefile("${path.module}/host/step.service.tftpl", {
        step    = step
        command = command
        once    = step == "submit"
        stop_s  = try(machine.host.STOP_S, 30)
      })
      mode = "0644"
    } },
    var.cloud == "aws" ? {
      "/etc/echo-queue/aws.conf"                           = { text = file("${path.module}/host/aws.conf"), mode = "0644" }
      "/etc/systemd/system/echo-queue-credentials.service" = { text = file("${path.module}/host/credentials.service"), mode = "0644" }
      "/etc/systemd/system/echo-queue-credentials.timer"   = { text = file("${path.module}/host/credentials.timer"), mode = "0644" }
    } : {},
    machine.role == "redis" ? {
      "/etc/echo-queue/redis.conf" = {
        text = templatefile("${path.module}/host/redis.conf.tftpl", { port = local.redis_port, memory_gb = var.redis_memory_gb })
        mode = "0644"
      }
    } : {},
  ) }

  user_data = { for name, machine in local.machines : name => join("\n", ["#cloud-config", jsonencode(merge(
    {
      write_files = [for path, one in local.files[name] : {
        path        = path
        content     = one.text
        permissions = one.mode
        owner       = "root:root"
      }]
      runcmd = [
        ["systemctl", "daemon-reload"],
        concat(
          ["systemctl", "enable", "--now", "--no-block"],
          ["echo-queue-boot.service"],
          [for step in keys(machine.steps) : "echo-queue-${step}.service"],
          var.cloud == "aws" ? ["echo-queue-credentials.timer"] : [],
        ),
      ]
    },
    # Amazon Linux has no container engine; its packages lie in S3 and are those of the machine image's own release.
    machine.role == "redis" ? { packages = ["docker", "openssl"] } : {},
  ))]) }
}
