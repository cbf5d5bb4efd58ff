# What the plan decides from good input.

variables {
  run_name         = "demo"
  config           = "[run]\nname = \"demo\"\ndir = \"runs/demo\"\n"
  cloud            = "aws"
  region           = "us-east-1"
  image            = "123456789012.dkr.ecr.us-east-1.amazonaws.com/echo-queue@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  redis_image      = "images.example.org/valkey@sha256:1111111111111111111111111111111111111111111111111111111111111111"
  max_usd_per_hour = 20
  bucket           = "my-bucket"
  store_region     = "us-east-1"
  redis_host       = "10.60.16.10"
  account          = { partition = "aws", id = "123456789012" }
  learner_gpus     = 1
  data_volumes     = { redis = "vol-0aaaaaaaaaaaaaaaa", learner = "vol-0bbbbbbbbbbbbbbbb" }
  secrets = {
    admin     = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/admin-AbCdEf"
    submitter = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/submitter-AbCdEf"
    worker    = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/worker-AbCdEf"
    learner   = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/learner-AbCdEf"
    monitor   = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/monitor-AbCdEf"
    celery    = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/celery-AbCdEf"
  }
  pools = <<-JSON
    {"format": 1, "pools": {
      "l4": {"cloud": "aws", "region": "us-east-1", "instance_types": ["g6.xlarge", "g6.2xlarge"], "gpus": 1, "machines": 2, "max_machines": 4, "usd_per_hour": 0.5},
      "four": {"cloud": "aws", "region": "us-east-1", "zones": ["us-east-1a"], "instance_types": ["g6.12xlarge"], "gpus": 4, "machines": 0, "max_machines": 2, "usd_per_hour": 2, "disk_gb": 300},
      "west": {"cloud": "aws", "region": "us-west-2", "instance_types": ["g6.xlarge"], "gpus": 1, "machines": 1, "max_machines": 1, "usd_per_hour": 0.5},
      "google": {"cloud": "gcp", "region": "us-central1", "instance_types": ["g2-standard-8"], "gpus": 1, "machines": 1, "max_machines": 2, "usd_per_hour": 0.4}
    }}
  JSON
}

run "plans_the_pools_of_its_own_cloud_and_region_and_names_the_others" {
  command = plan

  assert {
    condition     = keys(output.pools) == ["four", "l4"] && join(",", output.elsewhere) == "google,west"
    error_message = "The pools of us-east-1 are l4 and four."
  }
}

run "gives_each_gpu_a_worker" {
  command = plan

  assert {
    condition     = output.pools["l4"].workers == 1 && output.pools["four"].workers == 4
    error_message = "A worker for each GPU."
  }

  assert {
    condition     = strcontains(output.user_data["pool/four"], "echo-queue-worker-3.service") && !strcontains(output.user_data["pool/four"], "echo-queue-worker-4.service")
    error_message = "Four units on a machine with four GPUs."
  }
}

run "gives_a_machine_without_a_gpu_one_worker" {
  command = plan

  variables {
    pools = jsonencode({ format = 1, pools = { cpu = { cloud = "aws", region = "us-east-1", instance_types = ["c7i.large"], gpus = 0, machines = 1, max_machines = 1, usd_per_hour = 0.1 } } })
  }

  assert {
    condition     = output.pools["cpu"].workers == 1 && strcontains(output.user_data["pool/cpu"], "GPUS='0'")
    error_message = "One worker, which asks for no GPU."
  }
}

run "fills_in_what_the_planner_left_out" {
  command = plan

  assert {
    condition     = output.pools["l4"].disk_gb == 200 && output.pools["four"].disk_gb == 300
    error_message = "200 GB where the pool says nothing."
  }
}

run "adds_up_what_the_pools_cost" {
  command = plan

  assert {
    condition     = output.cost.begins_at_usd_per_hour == 2 * 0.5 + 0.5 + 0.4 && output.cost.at_most_usd_per_hour == 4 * 0.5 + 2 * 2 + 0.5 + 2 * 0.4
    error_message = "The price of all pools of the file."
  }
}

run "takes_a_file_without_pools" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {}}"
  }

  assert {
    condition     = length(output.pools) == 0 && output.cost.at_most_usd_per_hour == 0
    error_message = "A run may begin with no pool."
  }
}

run "puts_no_secret_into_user_data" {
  command = plan

  assert {
    condition     = alltrue([for text in values(output.user_data) : !can(regex("(?i)AKIA|BEGIN [A-Z ]*PRIVATE KEY|_PASSWORD='", text))])
    error_message = "User data names secrets and holds none."
  }
}

run "gives_user_data_that_fits" {
  command = plan

  assert {
    condition     = alltrue([for text in values(output.user_data_gzip) : length(text) * 3 / 4 < 16384])
    error_message = "16 KiB of compressed user data."
  }
}

run "lets_workers_watch_the_file_that_the_host_writes" {
  command = plan

  assert {
    condition     = strcontains(output.user_data["pool/l4"], "ECHO_QUEUE_ROLLOUT__PREEMPTION__WATCH=file\\n") && strcontains(output.user_data["pool/l4"], "echo-queue-notices.service")
    error_message = "A worker in a container has no metadata server."
  }

  assert {
    condition     = !strcontains(output.user_data["learner"], "echo-queue-notices.service")
    error_message = "The learner's machine is on demand."
  }
}

run "starts_no_learner_again_whose_run_is_over_with_dead_prompts" {
  command = plan

  assert {
    condition     = length(split("RestartPreventExitStatus=3", output.user_data["learner"])) == 2 && !strcontains(output.user_data["pool/l4"], "RestartPreventExitStatus")
    error_message = "It would end with 3 again, for ever."
  }
}

run "gives_redis_tls_alone_an_append_only_file_and_no_eviction" {
  command = plan

  assert {
    condition = alltrue([for line in ["port 0", "tls-port 6380", "appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "maxmemory 6gb"] :
    strcontains(output.user_data["redis"], "\\n${line}\\n")])
    error_message = "redis.conf."
  }
}

run "gives_a_worker_its_own_secret_and_no_other" {
  command = plan

  assert {
    condition     = [for statement in jsondecode(output.machine_policies["worker"]).Statement : statement.Resource if contains(statement.Action, "secretsmanager:GetSecretValue")] == [["arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/worker-AbCdEf"]]
    error_message = "A worker reads its own password."
  }

  assert {
    condition     = !strcontains(output.user_data["pool/l4"], "demo/learner-AbCdEf") && !strcontains(output.user_data["pool/l4"], "demo/admin-AbCdEf")
    error_message = "It does not even know the others' names."
  }
}

run "lets_the_redis_machine_alone_write_secrets" {
  command = plan

  assert {
    condition     = [for machine, policy in output.machine_policies : machine if strcontains(policy, "PutSecretValue")] == ["redis"]
    error_message = "The Redis machine makes the passwords."
  }
}

run "has_the_redis_machine_alone_make_the_controllers_password" {
  command = plan

  variables {
    secrets = {
      worker     = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/worker-AbCdEf"
      controller = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/controller-AbCdEf"
    }
  }

  assert {
    condition     = [for machine, text in output.user_data : machine if strcontains(text, "demo/controller-AbCdEf")] == ["redis"] && [for machine, policy in output.machine_policies : machine if strcontains(policy, "demo/controller-AbCdEf")] == ["redis"]
    error_message = "No other machine of the run may read it."
  }
}

run "lets_the_learner_end_the_pools_of_this_run_and_nothing_else" {
  command = plan

  assert {
    condition = one([for statement in jsondecode(output.machine_policies["learner"]).Statement : statement.Resource if contains(statement.Action, "autoscaling:SetDesiredCapacity")]) == [
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-four",
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-l4",
      "arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-west",
    ]
    error_message = "The groups of the file, by name."
  }

  assert {
    condition     = output.groups_file == "us-east-1 eq-demo-four\nus-east-1 eq-demo-l4\nus-west-2 eq-demo-west\n"
    error_message = "Its host reads their names from the bucket."
  }

  assert {
    condition     = !strcontains(output.user_data["learner"], "eq-demo-four") && !strcontains(output.user_data["redis"], "runs/demo")
    error_message = "A new pool replaces no learner, and a new configuration no Redis."
  }
}

run "lets_a_workers_machine_leave_the_groups_of_this_run_and_nothing_else" {
  command = plan

  assert {
    condition = one([for statement in jsondecode(output.machine_policies["worker"]).Statement : statement.Resource if contains(statement.Action, "autoscaling:TerminateInstanceInAutoScalingGroup")]) == [
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-four",
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-l4",
      "arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:*:autoScalingGroupName/eq-demo-west",
    ]
    error_message = "The groups of the file, by name."
  }

  assert {
    condition     = [for machine, policy in output.machine_policies : machine if strcontains(policy, "autoscaling:")] == ["learner", "worker"] && !strcontains(output.machine_policies["worker"], "SetDesiredCapacity")
    error_message = "A worker's machine makes no group larger, and Redis' touches none."
  }

  assert {
    condition     = strcontains(output.user_data["pool/four"], "ExecStopPost=/usr/local/lib/echo-queue/host worker_ended 3\\n") && !strcontains(output.user_data["learner"], "host worker_ended")
    error_message = "Each worker's unit says how its worker ended."
  }
}

run "lets_machines_pull_an_image_of_ecr_and_that_one_alone" {
  command = plan

  assert {
    condition     = strcontains(output.machine_policies["worker"], "arn:aws:ecr:us-east-1:123456789012:repository/echo-queue\"")
    error_message = "The image's own repository."
  }
}

run "gives_no_right_on_registries_for_a_public_image" {
  command = plan

  variables {
    image = "images.example.org/echo-queue@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  }

  assert {
    condition     = !strcontains(join("", values(output.machine_policies)), "ecr:")
    error_message = "A public image needs no right."
  }
}

run "allows_every_resource_only_where_aws_has_no_narrower_one" {
  command = plan

  assert {
    condition = distinct(flatten([for policy in concat(values(output.machine_policies), values(output.store_policies)) : [
      for statement in jsondecode(policy).Statement : statement.Action if contains(flatten([statement.Resource]), "*")
      ]])) == distinct([
      "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel", "ecr:GetAuthorizationToken",
    ])
    error_message = "Sessions and registry tokens."
  }
}

run "plans_pools_of_google_cloud_with_keys_of_the_store" {
  command = plan

  variables {
    cloud         = "gcp"
    region        = "us-central1"
    account       = null
    redis_host    = "203.0.113.7"
    secrets       = { worker = "eq-demo-worker" }
    store_secrets = { access_key = "eq-demo-store-access-key", secret_key = "eq-demo-store-secret-key" }
  }

  assert {
    condition     = keys(output.pools) == ["google"]
    error_message = "The pool of us-central1."
  }

  assert {
    condition     = strcontains(output.user_data["pool/google"], "STORE_ACCESS_SECRET='eq-demo-store-access-key'") && strcontains(output.user_data["pool/google"], "STOP_S='25'") && !strcontains(output.user_data["pool/google"], "aws.conf")
    error_message = "Keys of the store by name, and 25 s to leave."
  }
}
