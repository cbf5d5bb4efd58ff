output "group" {
  description = "Name of the managed instance group, whose target size is the pool's number of machines."
  value       = google_compute_region_instance_group_manager.pool.name
}
