variable "name" {
  description = "First part of the names of the network's resources."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name must have 2 to 31 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "region" {
  description = "Region of the network."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must be a region of AWS, such as \"us-east-1\"."
  }
}

variable "cidr" {
  description = "Addresses of the network: a private /16."
  type        = string
  default     = "10.60.0.0/16"
  nullable    = false

  validation {
    condition     = can(cidrnetmask(var.cidr)) && endswith(var.cidr, "/16") && can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", var.cidr))
    error_message = "cidr must be a private network of size /16, such as \"10.60.0.0/16\"."
  }
}

variable "availability_zones" {
  description = "Zones of the region in which machines may stand. More zones mean more spot capacity."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.availability_zones) >= 1 && length(var.availability_zones) <= 8 && length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones must be 1 to 8 different zones."
  }

  validation {
    condition     = alltrue([for zone in var.availability_zones : startswith(zone, var.region)])
    error_message = "availability_zones must be zones of the region."
  }
}

variable "ports" {
  description = "Port of Redis, and the range of ports on which workers serve weights to one another (fleet_plan's output)."
  type = object({
    redis       = number
    peers_first = number
    peers_last  = number
  })
  nullable = false

  validation {
    condition     = alltrue([for port in values(var.ports) : port >= 1024 && port <= 65535]) && var.ports.peers_first <= var.ports.peers_last
    error_message = "ports must lie between 1024 and 65535, and peers_first must not be above peers_last."
  }
}

variable "redis_reachable_from" {
  description = "Addresses outside the network from which workers of other clouds reach Redis, such as their NAT's address."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for cidr in var.redis_reachable_from : can(cidrnetmask(cidr)) && tonumber(split("/", cidr)[1]) >= 24])
    error_message = "redis_reachable_from must be IPv4 networks of size /24 or smaller: Redis is never open to everybody."
  }
}
