variable "project" {
  description = "Project of the workers."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be the id of a project."
  }
}

variable "region" {
  description = "Region of the workers."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region of Google Cloud, such as \"us-central1\"."
  }
}

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
  description = "Path of the run's TOML file: the same file as the learner's."
  type        = string
  nullable    = false

  validation {
    condition     = fileexists(var.config_file)
    error_message = "config_file must be the path of a file."
  }
}

variable "pools_file" {
  description = "Path of the pools file (modules/fleet_plan/pools.schema.json): the same file as in AWS."
  type        = string
  nullable    = false

  validation {
    condition     = fileexists(var.pools_file)
    error_message = "pools_file must be the path of a file."
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

variable "machine_image" {
  description = "Image of the machines. It must have Docker, NVIDIA's driver and its container toolkit, the gcloud CLI and cloud-init."
  type        = string
  default     = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"
  nullable    = false

  validation {
    condition     = can(regex("^projects/[^/]+/global/images/", var.machine_image))
    error_message = "machine_image must be projects/PROJECT/global/images/NAME or .../family/NAME."
  }
}

variable "redis_address" {
  description = "Public address of Redis (the output `redis_address` of the AWS example)."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrnetmask("${var.redis_address}/32"))
    error_message = "redis_address must be an IPv4 address."
  }
}

variable "bucket" {
  description = "Name of the run's bucket."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must have 3 to 63 lower-case letters, digits and hyphens."
  }
}

variable "store_region" {
  description = "AWS region of the bucket."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+$", var.store_region))
    error_message = "store_region must be a region of AWS, such as \"us-east-1\"."
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
}

variable "machines_leave" {
  description = "Whether a machine whose workers wait in vain for a learner ends itself by its group. It needs a right on every instance group of the project: say false in a project that you share, and end the pools yourself."
  type        = bool
  default     = true
  nullable    = false
}
