# What the plan refuses, each by itself.

variables {
  run_name         = "demo"
  config           = "[run]\nname = \"demo\"\ndir = \"runs/demo\"\n"
  cloud            = "aws"
  region           = "us-east-1"
  image            = "images.example.org/echo-queue@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  max_usd_per_hour = 20
  bucket           = "my-bucket"
  store_region     = "us-east-1"
  redis_host       = "10.60.16.10"
  account          = { partition = "aws", id = "123456789012" }
  secrets          = { worker = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/worker-AbCdEf" }
  pools            = "{\"format\": 1, \"pools\": {}}"
}

run "refuses_a_name_with_capitals" {
  command = plan

  variables {
    run_name = "Demo"
    config   = "name = \"Demo\""
  }

  expect_failures = [var.run_name]
}

run "refuses_a_configuration_of_another_run" {
  command = plan

  variables {
    config = "[run]\nname = \"other\"\n"
  }

  expect_failures = [var.config]
}

run "refuses_a_configuration_with_a_password" {
  command = plan

  variables {
    config = "[run]\nname = \"demo\"\n[redis]\npassword = \"x\"\n"
  }

  expect_failures = [var.config]
}

run "refuses_a_configuration_that_is_too_long" {
  command = plan

  variables {
    config = "[run]\nname = \"demo\"\n${join("", [for number in range(1000) : "# filling"])}"
  }

  expect_failures = [var.config]
}

run "refuses_an_unknown_cloud" {
  command = plan

  variables {
    cloud = "azure"
  }

  expect_failures = [var.cloud]
}

run "refuses_a_zone_as_region" {
  command = plan

  variables {
    region = "us-east-1a"
  }

  expect_failures = [var.region]
}

run "refuses_an_image_by_tag" {
  command = plan

  variables {
    image = "images.example.org/echo-queue:latest"
  }

  expect_failures = [var.image]
}

run "refuses_a_redis_image_by_tag" {
  command = plan

  variables {
    redis_image = "images.example.org/valkey:8"
  }

  expect_failures = [var.redis_image]
}

run "refuses_pools_that_are_no_json" {
  command = plan

  variables {
    pools = "pools: l4"
  }

  expect_failures = [var.pools]
}

run "refuses_pools_of_another_format" {
  command = plan

  variables {
    pools = "{\"format\": 2, \"pools\": {}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_without_a_limit" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_that_begins_above_its_limit" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 3, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_of_half_a_machine" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 0.5, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_without_a_price" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_with_a_misspelt_key" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5, \"max_machine\": 5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_without_a_type" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_with_a_type_twice" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\", \"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_of_an_unknown_cloud" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"vast\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_that_does_not_count_its_gpus" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_with_a_zone_of_another_region" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5, \"zones\": [\"us-west-2a\"]}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_with_a_disk_that_is_too_small" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5, \"disk_gb\": 8}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_a_pool_whose_name_is_no_name" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"L4 pool\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 2, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.pools]
}

run "refuses_pools_that_could_cost_more_than_the_most" {
  command = plan

  variables {
    pools = "{\"format\": 1, \"pools\": {\"l4\": {\"cloud\": \"aws\", \"region\": \"us-east-1\", \"instance_types\": [\"g6.xlarge\"], \"gpus\": 1, \"machines\": 1, \"max_machines\": 100, \"usd_per_hour\": 0.5}}}"
  }

  expect_failures = [var.max_usd_per_hour]
}

run "refuses_a_bucket_with_capitals" {
  command = plan

  variables {
    bucket = "My_Bucket"
  }

  expect_failures = [var.bucket]
}

run "refuses_a_host_name_for_redis" {
  command = plan

  variables {
    redis_host = "redis.example.org"
  }

  expect_failures = [var.redis_host]
}

run "refuses_a_secret_of_an_unknown_role" {
  command = plan

  variables {
    secrets = { worker = "a", root = "b" }
  }

  expect_failures = [var.secrets]
}

run "refuses_a_plan_without_the_workers_secret" {
  command = plan

  variables {
    secrets = { learner = "a" }
  }

  expect_failures = [var.secrets]
}

run "refuses_a_plan_for_aws_without_an_account" {
  command = plan

  variables {
    account = null
  }

  expect_failures = [var.account]
}

run "refuses_half_a_gpu" {
  command = plan

  variables {
    learner_gpus = 0.5
  }

  expect_failures = [var.learner_gpus]
}
