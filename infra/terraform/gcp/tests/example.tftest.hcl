# The whole example, with a provider that makes things up: every reference between modules holds.

mock_provider "google" {
  mock_resource "google_compute_subnetwork" {
    defaults = { id = "projects/my-project/regions/us-central1/subnetworks/eq-workers" }
  }

  mock_resource "google_service_account" {
    defaults = { email = "eq-w@my-project.iam.gserviceaccount.com" }
  }
}

variables {
  project          = "my-project"
  region           = "us-central1"
  run_name         = "qwen3-0-6b-gsm8k"
  config_file      = "./tests/run.toml"
  pools_file       = "./pools.example.json"
  image            = "images.example.org/echo-queue@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  redis_address    = "198.51.100.4"
  bucket           = "my-bucket"
  store_region     = "us-east-1"
  max_usd_per_hour = 20
}

run "makes_the_pools_of_its_region" {
  command = apply

  assert {
    condition     = output.groups == { "google-l4" = "eq-qwen3-0-6b-gsm8k-google-l4" }
    error_message = "The pool of Google Cloud, and not that of AWS."
  }
}

run "makes_empty_secrets_that_workers_alone_read" {
  command = plan

  assert {
    condition     = keys(google_secret_manager_secret_iam_member.worker) == ["store-access-key", "store-secret-key", "worker"] && alltrue([for one in values(google_secret_manager_secret_iam_member.worker) : one.role == "roles/secretmanager.secretAccessor"])
    error_message = "Three secrets, read by the workers' account."
  }
}

run "lets_machines_leave_their_group_unless_the_project_is_shared" {
  command = plan

  assert {
    condition     = google_project_iam_custom_role.leave[0].permissions == toset(["compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"]) && length(google_project_iam_member.leave) == 1
    error_message = "Two permissions, for the workers' account."
  }
}

run "gives_no_right_on_groups_where_machines_do_not_leave" {
  command = plan

  variables {
    machines_leave = false
  }

  assert {
    condition     = length(google_project_iam_custom_role.leave) == 0 && length(google_project_iam_member.leave) == 0
    error_message = "No role, no member."
  }
}

run "refuses_redis_by_name" {
  command = plan

  variables {
    redis_address = "redis.example.org"
  }

  expect_failures = [var.redis_address]
}
