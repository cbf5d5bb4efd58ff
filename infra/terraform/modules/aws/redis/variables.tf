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
  description = "Zone of the machine and of its data."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+[a-z]$", var.availability_zone))
    error_message = "availability_zone must be a zone, such as \"us-east-1a\"."
  }
}

variable "subnet" {
  description = "Id of the subnet. The public one of the network if `public` is true."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^subnet-[0-9a-f]+$", var.subnet))
    error_message = "subnet must be the id of a subnet."
  }
}

variable "address" {
  description = "The machine's address in its subnet. It stays the same when the machine is replaced."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrnetmask("${var.address}/32"))
    error_message = "address must be an IPv4 address."
  }
}

variable "public" {
  description = "Whether other clouds reach Redis, under the elastic address `public_address_id`."
  type        = bool
  default     = false
  nullable    = false
}

variable "public_address_id" {
  description = "Allocation id of the elastic address."
  type        = string
  default     = null

  validation {
    condition     = var.public || var.public_address_id == null
    error_message = "public_address_id is for a public Redis."
  }
}

variable "security_group" {
  description = "Id of the security group of Redis."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^sg-[0-9a-f]+$", var.security_group))
    error_message = "security_group must be the id of a security group."
  }
}

variable "instance_type" {
  description = "Type of the machine. Its memory must exceed the memory of Redis by a half, for the rewrite of its file."
  type        = string
  default     = "r7i.large"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9]+$", var.instance_type))
    error_message = "instance_type must be a type of EC2, such as \"r7i.large\"."
  }
}

variable "machine_image" {
  description = "SSM parameter with the id of the machine image: Amazon Linux 2023 for the processor of instance_type."
  type        = string
  default     = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
  nullable    = false

  validation {
    condition     = startswith(var.machine_image, "/")
    error_message = "machine_image must be the name of an SSM parameter, which begins with a slash."
  }
}

variable "data_volume" {
  description = "Id of the volume with the append-only file."
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
