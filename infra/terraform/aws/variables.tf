variable "run_name" {
  description = "Name of the run, which is `run.name` in its configuration."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,22}[a-z0-9]$", var.run_name))
    error_message = "run_name must have 2 to 24 lower-case letters, digits and hyphens, begin with a letter and end with a letter or a digit."
  }
}

variable "config_file" {
  description = "Path of the run's TOML file."
  type        = string
  nullable    = false

  validation {
    condition     = fileexists(var.config_file)
    error_message = "config_file must be the path of a file."
  }
}

variable "pools_file" {
  description = "Path of the pools file (modules/fleet_plan/pools.schema.json)."
  type        = string
  nullable    = false

  validation {
    condition     = fileexists(var.pools_file)
    error_message = "pools_file must be the path of a file."
  }
}

variable "region" {
  description = "Region of everything."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must be a region of AWS, such as \"us-east-1\"."
  }
}

variable "availability_zones" {
  description = "Zones in which workers may stand. Redis and the learner stand in the first one."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.availability_zones) >= 1 && alltrue([for zone in var.availability_zones : startswith(zone, var.region)])
    error_message = "availability_zones must be zones of the region, at least one."
  }
}

variable "image" {
  description = "The product's image, by digest."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be pinned by its digest: REPOSITORY@sha256:64 hexadecimal digits."
  }
}

variable "redis_image" {
  description = "The image of Redis 7 or Valkey, by digest."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.redis_image))
    error_message = "redis_image must be pinned by its digest: REPOSITORY@sha256:64 hexadecimal digits."
  }
}

variable "bucket" {
  description = "Name of the bucket that is made for the run, unique in all of S3."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must have 3 to 63 lower-case letters, digits and hyphens."
  }
}

variable "keep_objects" {
  description = "Makes `terraform destroy` refuse to remove a bucket that still has objects."
  type        = bool
  default     = false
  nullable    = false
}

variable "learner" {
  description = "The learner's machine: instance type, number of GPUs, size of the data volume."
  type = object({
    instance_type = string
    gpus          = number
    data_gb       = optional(number, 200)
  })
  nullable = false

  validation {
    condition     = var.learner.data_gb >= 20 && var.learner.data_gb <= 16000
    error_message = "learner.data_gb must be between 20 and 16000."
  }
}

variable "redis" {
  description = "The machine of Redis: instance type, memory that Redis may use, size of the volume with its append-only file."
  type = object({
    instance_type = optional(string, "r7i.large")
    memory_gb     = optional(number, 6)
    data_gb       = optional(number, 50)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.redis.data_gb >= 3 * var.redis.memory_gb && var.redis.data_gb <= 16000
    error_message = "redis.data_gb must be at least three times redis.memory_gb, for the append-only file and its rewrite."
  }
}

variable "redis_reachable_from" {
  description = "Networks outside AWS from which workers reach Redis, such as the address of the NAT of the gcp example."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for cidr in var.redis_reachable_from : can(cidrnetmask(cidr)) && tonumber(split("/", cidr)[1]) >= 24])
    error_message = "redis_reachable_from must be IPv4 networks of size /24 or smaller: Redis is never open to everybody."
  }
}

variable "max_usd_per_hour" {
  description = "Largest price of all pools together, with every pool at its limit, in USD an hour."
  type        = number
  nullable    = false

  validation {
    condition     = var.max_usd_per_hour > 0
    error_message = "max_usd_per_hour must be more than 0."
  }
}

variable "monthly_budget_usd" {
  description = "The budget alarm goes off when the account's month is forecast to cost more, and at half of it."
  type        = number
  nullable    = false

  validation {
    condition     = var.monthly_budget_usd > 0
    error_message = "monthly_budget_usd must be more than 0."
  }
}

variable "alarm_email" {
  description = "Address to which the budget alarm goes."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.[^@ ]+$", var.alarm_email))
    error_message = "alarm_email must be an e-mail address."
  }
}

variable "outside_workers" {
  description = "Makes a user of IAM with a worker's rights on the bucket, for pools in other clouds. Its access key is made by hand."
  type        = bool
  default     = false
  nullable    = false
}

variable "controller" {
  description = "Makes Redis' user for the controller of the fleet, echo-queue fleet, and the secret with its password. A later change replaces the machine of Redis, not its data."
  type        = bool
  default     = false
  nullable    = false
}
