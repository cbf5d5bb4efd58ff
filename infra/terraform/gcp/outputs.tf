output "nat_address" {
  description = "Address from which the workers come: put NAT_ADDRESS/32 into redis_reachable_from of the AWS example."
  value       = google_compute_address.nat.address
}

output "secrets" {
  description = "Secrets to fill in by hand (docs/cloud.md)."
  value       = local.secrets
}

output "groups" {
  description = "Pool → its managed instance group."
  value       = { for name, pool in module.worker_pool : name => pool.group }
}
