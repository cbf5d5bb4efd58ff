variable "name" {
  description = "Name of the role and of its instance profile."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,60}$", var.name))
    error_message = "name must have 2 to 61 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "policies" {
  description = "Name → policy as JSON, one inline policy each. fleet_plan makes them."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for policy in values(var.policies) : can(jsondecode(policy).Statement)])
    error_message = "Each policy must be JSON with statements."
  }

  validation {
    condition = alltrue(flatten([
      for policy in values(var.policies) : [
        for statement in try(jsondecode(policy).Statement, []) : [
          for action in flatten([statement.Action]) : action != "*" && !endswith(action, ":*")
        ]
      ]
    ]))
    error_message = "A policy allows all actions of a service: name those that the role needs."
  }

  validation {
    condition = alltrue(flatten([
      for policy in values(var.policies) : [
        for statement in try(jsondecode(policy).Statement, []) : [
          for action in flatten([statement.Action]) :
          !contains(flatten([statement.Resource]), "*") || startswith(action, "ssmmessages:") ||
          contains(["ssm:UpdateInstanceInformation", "ecr:GetAuthorizationToken"], action)
        ]
      ]
    ]))
    error_message = "A policy allows an action on every resource: name the resources. Only sessions and registry tokens have none."
  }
}
