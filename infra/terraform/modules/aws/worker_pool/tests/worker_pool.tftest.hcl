mock_provider "aws" {}

variables {
  pool = {
    instance_types = ["g6.xlarge", "g6.2xlarge"]
    gpus           = 1
    machines       = 2
    max_machines   = 4
    disk_gb        = 200
    group_name     = "eq-demo-l4"
  }
  subnets        = { "us-east-1a" = "subnet-0aaaaaaaaaaaaaaaa", "us-east-1b" = "subnet-0bbbbbbbbbbbbbbbb" }
  security_group = "sg-0aaaaaaaaaaaaaaaa"
  profile        = "eq-demo-worker"
  user_data_gzip = "H4sIAAAAAAAA"
}

run "takes_spot_machines_alone_where_there_is_most_capacity" {
  command = plan

  assert {
    condition = (
      aws_autoscaling_group.pool.mixed_instances_policy[0].instances_distribution[0].on_demand_base_capacity == 0 &&
      aws_autoscaling_group.pool.mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 0 &&
      aws_autoscaling_group.pool.mixed_instances_policy[0].instances_distribution[0].spot_allocation_strategy == "price-capacity-optimized"
    )
    error_message = "Nothing on demand."
  }

  assert {
    condition     = aws_autoscaling_group.pool.mixed_instances_policy[0].launch_template[0].override[*].instance_type == tolist(["g6.xlarge", "g6.2xlarge"]) && aws_autoscaling_group.pool.capacity_rebalance
    error_message = "Every type of the pool, and a new machine before one is lost."
  }
}

run "has_a_limit" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.pool.max_size == 4 && aws_autoscaling_group.pool.min_size == 0 && aws_autoscaling_group.pool.desired_capacity == 2
    error_message = "Between none and four, two at first."
  }
}

run "keeps_containers_from_the_metadata_server" {
  command = plan

  assert {
    condition     = aws_launch_template.worker.metadata_options[0].http_tokens == "required" && aws_launch_template.worker.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "IMDSv2 and one hop."
  }

  assert {
    condition     = aws_launch_template.worker.network_interfaces[0].associate_public_ip_address == "false" && aws_launch_template.worker.block_device_mappings[0].ebs[0].encrypted == "true"
    error_message = "No public address, an encrypted disk."
  }
}

run "uses_the_pools_zones_alone" {
  command = plan

  variables {
    pool = {
      instance_types = ["g6.xlarge"]
      zones          = ["us-east-1b"]
      gpus           = 1
      machines       = 0
      max_machines   = 1
      disk_gb        = 200
      group_name     = "eq-demo-l4"
    }
  }

  assert {
    condition     = aws_autoscaling_group.pool.vpc_zone_identifier == toset(["subnet-0bbbbbbbbbbbbbbbb"])
    error_message = "The subnet of us-east-1b."
  }
}

run "begins_with_the_machines_of_the_plan" {
  command = apply
}

run "leaves_the_size_to_a_controller_afterwards" {
  command = plan

  variables {
    pool = {
      instance_types = ["g6.xlarge", "g6.2xlarge"]
      gpus           = 1
      machines       = 4
      max_machines   = 4
      disk_gb        = 200
      group_name     = "eq-demo-l4"
    }
  }

  assert {
    condition     = aws_autoscaling_group.pool.desired_capacity == 2
    error_message = "The plan's number of machines counts once, at the pool's creation."
  }
}

run "refuses_a_zone_without_a_subnet" {
  command = plan

  variables {
    pool = {
      instance_types = ["g6.xlarge"]
      zones          = ["us-east-1c"]
      gpus           = 1
      machines       = 0
      max_machines   = 1
      disk_gb        = 200
      group_name     = "eq-demo-l4"
    }
  }

  expect_failures = [var.subnets]
}

run "refuses_more_machines_than_the_limit" {
  command = plan

  variables {
    pool = {
      instance_types = ["g6.xlarge"]
      gpus           = 1
      machines       = 5
      max_machines   = 4
      disk_gb        = 200
      group_name     = "eq-demo-l4"
    }
  }

  expect_failures = [var.pool]
}
