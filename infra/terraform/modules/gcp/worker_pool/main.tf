# One managed instance group for each pool: spot machines alone, of whichever type and zone has capacity.

resource "google_compute_region_instance_template" "worker" {
  name_prefix    = "${var.pool.group_name}-"
  region         = var.region
  machine_type   = var.pool.instance_types[0]
  can_ip_forward = false
  tags           = ["echo-queue-worker"]
  labels         = { echo-queue-pool = var.pool.group_name }

  scheduling {
    provisioning_model          = "SPOT"
    preemptible                 = true
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"
  }

  disk {
    source_image = var.machine_image
    disk_type    = "pd-balanced"
    disk_size_gb = var.pool.disk_gb
    boot         = true
    auto_delete  = true
  }

  network_interface {
    subnetwork = var.subnetwork
  }

  service_account {
    email  = var.service_account
    scopes = ["cloud-platform"]
  }

  # NVIDIA's driver is not signed on these images, and a machine that boots securely would not load it.
  shielded_instance_config {
    enable_secure_boot          = false
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  metadata = {
    user-data              = var.user_data
    block-project-ssh-keys = "true"
    enable-oslogin         = "true"
    serial-port-enable     = "false"
    # The driver is part of the image; the deep-learning images install theirs only if they are asked to.
    install-nvidia-driver = "True"
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_region_instance_group_manager" "pool" {
  name                             = var.pool.group_name
  region                           = var.region
  base_instance_name               = var.pool.group_name
  target_size                      = var.pool.machines
  distribution_policy_zones        = var.pool.zones
  distribution_policy_target_shape = "ANY"
  wait_for_instances               = false

  version {
    instance_template = google_compute_region_instance_template.worker.self_link
  }

  instance_flexibility_policy {
    instance_selections {
      name          = "any"
      machine_types = var.pool.instance_types
    }
  }

  update_policy {
    type                         = "OPPORTUNISTIC"
    minimal_action               = "REPLACE"
    instance_redistribution_type = "NONE"
    max_surge_fixed              = 0
    max_unavailable_fixed        = 10
  }

  lifecycle {
    # The size belongs to a controller, or to a person, once the pool exists.
    ignore_changes = [target_size]
  }
}
