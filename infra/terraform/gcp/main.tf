provider "google" {
  project = var.project
  region  = var.region
}

locals {
  prefix = module.plan.prefix
  # What a worker needs of the run in AWS. A person fills them in; Terraform never sees their values.
  secrets = { for name in ["worker", "store-access-key", "store-secret-key"] : name => "eq-${var.run_name}-${name}" }
}

module "plan" {
  source           = "../modules/fleet_plan"
  run_name         = var.run_name
  config           = file(var.config_file)
  pools            = file(var.pools_file)
  cloud            = "gcp"
  region           = var.region
  image            = var.image
  max_usd_per_hour = var.max_usd_per_hour
  bucket           = var.bucket
  store_region     = var.store_region
  redis_host       = var.redis_address
  secrets          = { worker = local.secrets["worker"] }
  store_secrets    = { access_key = local.secrets["store-access-key"], secret_key = local.secrets["store-secret-key"] }
}

resource "google_compute_network" "run" {
  name                    = local.prefix
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "workers" {
  #checkov:skip=CKV_GCP_26:Flow logs cost more than they tell here: nothing listens to the outside
  #checkov:skip=CKV_GCP_76:The network has no IPv6
  #checkov:skip=CKV_GCP_74:It is set below
  name                     = "${local.prefix}-workers"
  region                   = var.region
  network                  = google_compute_network.run.id
  ip_cidr_range            = "10.61.0.0/20"
  private_ip_google_access = true
}

# Redis lets in one address: that of this NAT.
resource "google_compute_address" "nat" {
  name   = "${local.prefix}-nat"
  region = var.region
}

resource "google_compute_router" "run" {
  name    = local.prefix
  region  = var.region
  network = google_compute_network.run.id
}

resource "google_compute_router_nat" "run" {
  name                               = local.prefix
  region                             = var.region
  router                             = google_compute_router.run.name
  nat_ip_allocate_option             = "MANUAL_ONLY"
  nat_ips                            = [google_compute_address.nat.self_link]
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}

resource "google_compute_firewall" "peers" {
  name        = "${local.prefix}-peers"
  description = "Weights, from worker to worker"
  network     = google_compute_network.run.id
  direction   = "INGRESS"
  source_tags = ["echo-queue-worker"]
  target_tags = ["echo-queue-worker"]

  allow {
    protocol = "tcp"
    ports    = ["${module.plan.ports.peers_first}-${module.plan.ports.peers_last}"]
  }
}

resource "google_service_account" "worker" {
  account_id   = "eq-${var.run_name}-w"
  display_name = "Rollout workers of the run ${var.run_name}"
}

resource "google_secret_manager_secret" "run" {
  for_each  = local.secrets
  secret_id = each.value

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_iam_member" "worker" {
  for_each  = google_secret_manager_secret.run
  secret_id = each.value.id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.worker.email}"
}

# A machine that nothing needs any more ends itself by its group. Google Cloud knows no condition on groups, so this right
# is one on every group of the project; no container of a machine reaches the server that gives out its token.
resource "google_project_iam_custom_role" "leave" {
  count       = var.machines_leave ? 1 : 0
  role_id     = "eq_${replace(var.run_name, "-", "_")}_leave"
  title       = "Leave an instance group"
  description = "Workers' machines of the run ${var.run_name} that wait in vain for a learner"
  permissions = ["compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"]
}

resource "google_project_iam_member" "leave" {
  count   = var.machines_leave ? 1 : 0
  project = var.project
  role    = google_project_iam_custom_role.leave[0].id
  member  = "serviceAccount:${google_service_account.worker.email}"
}

module "worker_pool" {
  source          = "../modules/gcp/worker_pool"
  for_each        = module.plan.pools
  pool            = each.value
  region          = var.region
  subnetwork      = google_compute_subnetwork.workers.id
  service_account = google_service_account.worker.email
  machine_image   = var.machine_image
  user_data       = module.plan.user_data["pool/${each.key}"]
  depends_on      = [google_secret_manager_secret_iam_member.worker]
}
