locals {
  all_pools = jsondecode(var.pools).pools

  # What the planner left out is decided here and nowhere else.
  pools = {
    for name, pool in local.all_pools : name => {
      instance_types = pool.instance_types
      zones          = try(pool.zones, null)
      gpus           = pool.gpus
      workers        = max(1, pool.gpus)
      machines       = pool.machines
      max_machines   = pool.max_machines
      usd_per_hour   = pool.usd_per_hour
      disk_gb        = try(pool.disk_gb, 200)
      group_name     = "${local.prefix}-${name}"
    } if pool.cloud == var.cloud && pool.region == var.region
  }

  prefix         = "eq-${var.run_name}"
  peer_ports     = { first = 29600, last = 29615 }
  redis_port     = 6380
  aws_groups     = { for name, pool in local.all_pools : "${local.prefix}-${name}" => pool.region if pool.cloud == "aws" }
  most_usd       = sum(concat([0], [for pool in local.all_pools : pool.max_machines * pool.usd_per_hour]))
  begins_at_usd  = sum(concat([0], [for pool in local.all_pools : pool.machines * pool.usd_per_hour]))
  ecr_repository = try(regex("^([0-9]{12})\\.dkr\\.ecr\\.([a-z0-9-]+)\\.amazonaws\\.com/([^@:]+)", var.image), null)
}
