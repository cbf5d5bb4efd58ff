variable "name" {
  description = "First part of the names of the resources."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name must have 2 to 31 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "availability_zone" {
  description = "Zone of the machine and of its data. It must have the instance type."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+[a-z]$", var.availability_zone))
    error_message = "availability_zone must be a zone, such as \"us-east-1a\"."
  }
}

variable "subnet" {
  description = "Id of the private subnet of the zone."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^subnet-[0-9a-f]+$", var.subnet))
    error_message = "subnet must be the id of a subnet."
  }
}

variable "security_group" {
  description = "Id of the learner's security group."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^sg-[0-9a-f]+$", var.security_group))
    error_message = "security_group must be the id of a security group."
  }
}

variable "instance_type" {
  description = "Type of the machine, which is on demand: an interruption would hold up all workers."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9]+$", var.instance_type))
    error_message = "instance_type must be a type of EC2, such as \"g6e.2xlarge\"."
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

variable "root_disk_gb" {
  description = "Root disk of the machine: the image and the base model."
  type        = number
  default     = 200
  nullable    = false

  validation {
    condition     = var.root_disk_gb >= 50 && var.root_disk_gb <= 2000
    error_message = "root_disk_gb must be between 50 and 2000."
  }
}

variable "data_volume" {
  description = "Id of the volume with the run's directory."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^vol-[0-9a-f]+$", var.data_volume))
    error_message = "data_volume must be the id of an EBS volume."
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

variable "policies" {
  description = "Name → policy of the machine's role, as JSON (fleet_plan's output)."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for policy in values(var.policies) : can(jsondecode(policy).Statement)])
    error_message = "Each policy must be JSON with statements."
  }
}
