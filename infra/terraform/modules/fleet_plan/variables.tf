variable "run_name" {
  description = "Name of the run, which is `run.name` in its configuration. It names every resource."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,22}[a-z0-9]$", var.run_name))
    error_message = "run_name must have 2 to 24 lower-case letters, digits and hyphens, begin with a letter and end with a letter or a digit."
  }
}

variable "config" {
  description = "Text of the run's TOML file. Addresses and paths of the machines come on top of it as environment variables."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("(?m)^name\\s*=\\s*\"${var.run_name}\"", var.config))
    error_message = "config must have a line `name = \"RUN\"` in [run] with the same name as run_name, because keys, objects and rights are named by it."
  }

  validation {
    condition     = !can(regex("(?im)^\\s*[a-z_]*(password|secret|access_key|token)\\s*=", var.config))
    error_message = "config seems to contain a secret: every process of a machine can read its user data. Secrets are fetched at boot."
  }

  validation {
    condition     = length(var.config) <= 8192
    error_message = "config must have at most 8,192 characters, because user data may have 16 KiB in all."
  }
}

variable "cloud" {
  description = "The cloud whose pools are planned: `aws` or `gcp`."
  type        = string
  nullable    = false

  validation {
    condition     = contains(["aws", "gcp"], var.cloud)
    error_message = "cloud must be \"aws\" or \"gcp\"."
  }
}

variable "region" {
  description = "The region whose pools are planned. Pools of other regions are left to other plans."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-?[0-9]+$", var.region))
    error_message = "region must be a region such as \"us-east-1\" or \"us-central1\", not a zone."
  }
}

variable "image" {
  description = "The product's image, by digest. Machines of every role run it, so that all of them have the same code."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be pinned by its digest: REPOSITORY@sha256:64 hexadecimal digits. A tag may change while the run goes on."
  }
}

variable "redis_image" {
  description = "The image of Redis 7 or Valkey, by digest. Only the Redis machine runs it."
  type        = string
  default     = null

  validation {
    condition     = var.redis_image == null || can(regex("^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$", var.redis_image))
    error_message = "redis_image must be pinned by its digest: REPOSITORY@sha256:64 hexadecimal digits."
  }
}

variable "pools" {
  description = "Text of the pools file, as pools.schema.json describes it. A planner may write it."
  type        = string
  nullable    = false

  validation {
    condition     = can(jsondecode(var.pools).pools) && can(keys(jsondecode(var.pools).pools))
    error_message = "pools must be JSON with a table \"pools\": see pools.schema.json."
  }

  validation {
    condition     = try(jsondecode(var.pools).format, null) == 1 && length(setsubtract(try(keys(jsondecode(var.pools)), []), ["format", "pools"])) == 0
    error_message = "pools must have \"format\": 1 and \"pools\", and nothing else."
  }

  validation {
    condition = alltrue([
      for name in try(keys(jsondecode(var.pools).pools), []) : can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", name))
    ])
    error_message = "A pool's name must have 2 to 20 lower-case letters, digits and hyphens, begin with a letter and end with a letter or a digit."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) : length(setsubtract(try(keys(pool), []), [
        "cloud", "region", "zones", "instance_types", "gpus", "machines", "max_machines", "usd_per_hour", "disk_gb",
      ])) == 0
    ])
    error_message = "A pool has a key that pools.schema.json does not know."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(contains(["aws", "gcp"], pool.cloud), false) && can(regex("^[a-z]+(-[a-z]+)+-?[0-9]+$", pool.region))
    ])
    error_message = "A pool must name its cloud (aws or gcp) and its region."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(length(pool.instance_types) >= 1 && length(pool.instance_types) <= 40, false) &&
      try(length(distinct(pool.instance_types)) == length(pool.instance_types), false) &&
      try(alltrue([for type in pool.instance_types : can(regex("^[a-z][a-z0-9-]*[.-][a-z0-9.-]+$", type))]), false)
    ])
    error_message = "A pool must name 1 to 40 different instance types, such as \"g6.xlarge\" or \"g2-standard-8\"."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(pool.gpus >= 0 && pool.gpus <= 16 && floor(pool.gpus) == pool.gpus, false)
    ])
    error_message = "A pool must say how many GPUs each of its machines has: a whole number from 0 to 16."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(pool.max_machines >= 1 && pool.max_machines <= 500 && floor(pool.max_machines) == pool.max_machines, false)
    ])
    error_message = "A pool must have a limit: max_machines, a whole number from 1 to 500."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(pool.machines >= 0 && pool.machines <= pool.max_machines && floor(pool.machines) == pool.machines, false)
    ])
    error_message = "A pool must say with how many machines it begins: a whole number from 0 to max_machines."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) : try(pool.usd_per_hour > 0 && pool.usd_per_hour <= 200, false)
    ])
    error_message = "A pool must state the price of one of its machines: usd_per_hour, more than 0 and at most 200."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(pool.disk_gb, 200) >= 100 && try(pool.disk_gb, 200) <= 2000
    ])
    error_message = "disk_gb of a pool must be between 100 and 2000."
  }

  validation {
    condition = alltrue([
      for pool in try(values(jsondecode(var.pools).pools), []) :
      try(length(pool.zones) >= 1 && alltrue([for zone in pool.zones : startswith(zone, pool.region)]), !can(pool.zones))
    ])
    error_message = "zones of a pool must be zones of its own region, at least one."
  }
}

variable "max_usd_per_hour" {
  description = "Largest price of all pools of the file together, with every pool at its limit, in USD an hour."
  type        = number
  nullable    = false

  validation {
    condition     = var.max_usd_per_hour > 0
    error_message = "max_usd_per_hour must be more than 0."
  }

  validation {
    condition = sum(concat([0], [
      for pool in try(values(jsondecode(var.pools).pools), []) : try(pool.max_machines * pool.usd_per_hour, 0)
    ])) <= var.max_usd_per_hour
    error_message = "With every pool at its max_machines the pools cost more than max_usd_per_hour: lower the limits, or raise it."
  }
}

variable "bucket" {
  description = "Name of the bucket with the run's objects."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of an S3 bucket."
  }
}

variable "store_region" {
  description = "Region of the bucket. It also gives the address of the store."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+$", var.store_region))
    error_message = "store_region must be a region of AWS, such as \"us-east-1\"."
  }
}

variable "redis_host" {
  description = "IPv4 address of Redis, as the planned machines reach it. Its certificate is made for it."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrnetmask("${var.redis_host}/32"))
    error_message = "redis_host must be an IPv4 address."
  }
}

variable "redis_public_host" {
  description = "A second IPv4 address of Redis, for machines outside the network. Its certificate is made for it as well."
  type        = string
  default     = null

  validation {
    condition     = var.redis_public_host == null || can(cidrnetmask("${var.redis_public_host}/32"))
    error_message = "redis_public_host must be an IPv4 address."
  }
}

variable "redis_memory_gb" {
  description = "Memory that Redis may use, in GB."
  type        = number
  default     = 6
  nullable    = false

  validation {
    condition     = var.redis_memory_gb >= 1 && floor(var.redis_memory_gb) == var.redis_memory_gb
    error_message = "redis_memory_gb must be a whole number, at least 1."
  }
}

variable "secrets" {
  description = "Role → name or ARN of the secret with its Redis password and the certificate authority."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(setsubtract(keys(var.secrets), ["admin", "submitter", "worker", "learner", "monitor", "celery", "controller"])) == 0
    error_message = "secrets may be those of the roles admin, submitter, worker, learner, monitor, celery and controller."
  }

  validation {
    condition     = contains(keys(var.secrets), "worker")
    error_message = "secrets must name the one of the role worker."
  }
}

variable "store_secrets" {
  description = "Names of the secrets with the store's access key and secret key, for workers that have no instance role in AWS."
  type = object({
    access_key = string
    secret_key = string
  })
  default = null

  validation {
    condition     = var.cloud == "aws" || var.store_secrets != null
    error_message = "store_secrets must be given where a machine has no role in AWS."
  }
}

variable "learner_gpus" {
  description = "Number of GPUs of the learner's machine; 0 trains on its CPUs."
  type        = number
  default     = 0
  nullable    = false

  validation {
    condition     = var.learner_gpus >= 0 && var.learner_gpus <= 16 && floor(var.learner_gpus) == var.learner_gpus
    error_message = "learner_gpus must be a whole number from 0 to 16."
  }
}

variable "data_volumes" {
  description = "Role (redis, learner) → id of the EBS volume with its data; empty for a machine that keeps it on its root disk."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = length(setsubtract(keys(var.data_volumes), ["redis", "learner"])) == 0
    error_message = "data_volumes may be those of redis and learner."
  }
}

variable "account" {
  description = "Partition and id of the AWS account, for the names of its resources in policies."
  type = object({
    partition = string
    id        = string
  })
  default = null

  validation {
    condition     = var.account == null || can(regex("^[0-9]{12}$", var.account.id))
    error_message = "account.id must have 12 digits."
  }

  validation {
    condition     = var.cloud != "aws" || var.account != null
    error_message = "account must be given for AWS."
  }
}
