variable "pool" {
  description = "The pool's decisions (fleet_plan's output)."
  type = object({
    instance_types = list(string)
    zones          = optional(list(string))
    gpus           = number
    machines       = number
    max_machines   = number
    disk_gb        = number
    group_name     = string
  })
  nullable = false

  validation {
    condition     = length(var.pool.instance_types) >= 1
    error_message = "A pool must have an instance type."
  }

  validation {
    condition     = var.pool.max_machines >= 1 && var.pool.machines >= 0 && var.pool.machines <= var.pool.max_machines
    error_message = "A pool must have a limit, and begin with no more machines than that."
  }
}

variable "subnets" {
  description = "Availability zone → id of its private subnet."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(var.subnets) >= 1
    error_message = "subnets must have at least one."
  }

  validation {
    condition     = var.pool.zones == null ? true : length(setintersection(var.pool.zones, keys(var.subnets))) == length(var.pool.zones)
    error_message = "The pool names a zone in which the network has no subnet: add it to availability_zones."
  }
}

variable "security_group" {
  description = "Id of the workers' security group."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^sg-[0-9a-f]+$", var.security_group))
    error_message = "security_group must be the id of a security group."
  }
}

variable "profile" {
  description = "Name of the workers' instance profile."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,60}$", var.profile))
    error_message = "profile must be the name of an instance profile."
  }
}

variable "machine_image" {
  description = "SSM parameter with the id of the machine image. It must have Docker, NVIDIA's driver and its container toolkit, the AWS CLI and cloud-init."
  type        = string
  default     = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
  nullable    = false

  validation {
    condition     = startswith(var.machine_image, "/")
    error_message = "machine_image must be the name of an SSM parameter, which begins with a slash."
  }
}

variable "user_data_gzip" {
  description = "User data, compressed, in base64 (fleet_plan's output)."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9+/]+=*$", var.user_data_gzip))
    error_message = "user_data_gzip must be in base64."
  }
}

variable "tags" {
  description = "Tags of the pool's machines and of their disks."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for tag in keys(var.tags) : !startswith(tag, "aws:")])
    error_message = "Tags that begin with aws: belong to AWS."
  }
}
