variable "bucket" {
  description = "Name of the bucket, unique in all of S3."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must have 3 to 63 lower-case letters, digits and hyphens: a dot breaks TLS."
  }
}

variable "keep_objects" {
  description = "Makes `terraform destroy` refuse to remove a bucket that still has objects."
  type        = bool
  default     = false
  nullable    = false
}

variable "partition" {
  description = "Partition of the account: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
  nullable    = false

  validation {
    condition     = contains(["aws", "aws-cn", "aws-us-gov"], var.partition)
    error_message = "partition must be aws, aws-cn or aws-us-gov."
  }
}
