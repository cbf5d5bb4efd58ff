mock_provider "google" {}

variables {
  pool = {
    instance_types = ["g2-standard-8", "g2-standard-12"]
    gpus           = 1
    machines       = 2
    max_machines   = 4
    disk_gb        = 200
    group_name     = "eq-demo-l4"
  }
  region          = "us-central1"
  subnetwork      = "projects/my-project/regions/us-central1/subnetworks/eq-demo-workers"
  service_account = "eq-demo-w@my-project.iam.gserviceaccount.com"
  machine_image   = "projects/deeplearning-platform-release/global/images/family/any"
  user_data       = "#cloud-config\n{}"
}

run "takes_spot_machines_alone" {
  command = plan

  assert {
    condition = (
      google_compute_region_instance_template.worker.scheduling[0].provisioning_model == "SPOT" &&
      google_compute_region_instance_template.worker.scheduling[0].instance_termination_action == "DELETE" &&
      !google_compute_region_instance_template.worker.scheduling[0].automatic_restart
    )
    error_message = "Spot, deleted when it is taken."
  }

  assert {
    condition     = google_compute_region_instance_group_manager.pool.target_size == 2
    error_message = "Two machines at first."
  }
}

run "gives_no_machine_an_address_or_a_key" {
  command = plan

  assert {
    condition     = length(google_compute_region_instance_template.worker.network_interface[0].access_config) == 0 && google_compute_region_instance_template.worker.metadata["block-project-ssh-keys"] == "true"
    error_message = "No address outside the network, no SSH keys of the project."
  }
}

run "refuses_more_machines_than_the_limit" {
  command = plan

  variables {
    pool = {
      instance_types = ["g2-standard-8"]
      gpus           = 1
      machines       = 5
      max_machines   = 4
      disk_gb        = 200
      group_name     = "eq-demo-l4"
    }
  }

  expect_failures = [var.pool]
}

run "refuses_user_data_that_is_no_cloud_config" {
  command = plan

  variables {
    user_data = "#!/bin/sh"
  }

  expect_failures = [var.user_data]
}
