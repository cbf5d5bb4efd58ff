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
    error_message = "A pool must have a machine type."
  }

  validation {
    condition     = var.pool.max_machines >= 1 && var.pool.machines >= 0 && var.pool.machines <= var.pool.max_machines
    error_message = "A pool must have a limit, and begin with no more machines than that."
  }
}

variable "region" {
  description = "Region of the pool."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region of Google Cloud, such as \"us-central1\"."
  }
}

variable "subnetwork" {
  description = "Id of the subnetwork of the machines, which get no address outside it."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("/subnetworks/[a-z][a-z0-9-]*$", var.subnetwork))
    error_message = "subnetwork must be the id of a subnetwork, which ends in /subnetworks/NAME."
  }
}

variable "service_account" {
  description = "E-mail address of the workers' service account."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[^@]+@[^@]+$", var.service_account))
    error_message = "service_account must be an e-mail address."
  }
}

variable "machine_image" {
  description = "Image of the machines. It must have Docker, NVIDIA's driver and its container toolkit, the gcloud CLI and cloud-init."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^projects/[^/]+/global/images/", var.machine_image))
    error_message = "machine_image must be projects/PROJECT/global/images/NAME or .../family/NAME."
  }
}

variable "user_data" {
  description = "User data, cloud-init's text (fleet_plan's output)."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.user_data, "#cloud-config")
    error_message = "user_data must be cloud-init's text."
  }
}
