output "pools" {
  description = "Name of each pool of this cloud and region → its decisions."
  value       = local.pools
}

output "elsewhere" {
  description = "Names of the file's pools that belong to other clouds or regions, and so to other plans."
  value       = sort(setsubtract(keys(local.all_pools), keys(local.pools)))
}

output "user_data" {
  description = "Machine (`pool/NAME`, `learner`, `redis`) → its user data, cloud-init's text. Compress it: see user_data_gzip."
  value       = local.user_data
}

output "user_data_gzip" {
  description = "The same, compressed and in base64. EC2 takes 16 KiB of compressed user data."
  value       = { for name, text in local.user_data : name => base64gzip(text) }

  precondition {
    condition     = alltrue([for text in values(local.user_data) : length(base64gzip(text)) * 3 / 4 <= 16384])
    error_message = "The user data of a machine is larger than 16 KiB: shorten the configuration."
  }
}

output "store_policies" {
  description = "Role (worker, submitter, learner) → the policy of docs/rights.md, as JSON."
  value = { for role, statements in local.store_policies : role =>
    jsonencode({ Version = "2012-10-17", Statement = statements }) if length(statements) > 0
  }
}

output "machine_policies" {
  description = "Machine (worker, learner, redis) → the policy of its instance role besides the store's, as JSON."
  value       = { for machine, statements in local.machine_policies : machine => jsonencode({ Version = "2012-10-17", Statement = statements }) }
}

output "groups_file" {
  description = "Region and name of each Auto Scaling group of the file, one a line. The learner's machine reads it from the bucket at the end, so that a new pool does not replace that machine."
  value       = join("", [for group, region in local.aws_groups : "${region} ${group}\n"])
}

output "cost" {
  description = "Expected price of the file's pools in USD an hour: as they begin, and with every pool at its limit."
  value       = { begins_at_usd_per_hour = local.begins_at_usd, at_most_usd_per_hour = local.most_usd }
}

output "prefix" {
  description = "First part of the names of all resources of the run."
  value       = local.prefix
}

output "ports" {
  description = "The port of Redis, and the ports on which workers of a pool serve weights to one another."
  value       = { redis = local.redis_port, peers_first = local.peer_ports.first, peers_last = local.peer_ports.last }
}
