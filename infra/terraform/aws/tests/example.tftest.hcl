# The whole example, with a provider that makes things up: every reference between modules holds.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }

  mock_resource "aws_secretsmanager_secret" {
    defaults = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:echo-queue/demo/role-AbCdEf" }
  }

  mock_resource "aws_eip" {
    defaults = { public_ip = "198.51.100.4" }
  }

  mock_resource "aws_subnet" {
    defaults = { id = "subnet-0aaaaaaaaaaaaaaaa" }
  }

  mock_resource "aws_security_group" {
    defaults = { id = "sg-0aaaaaaaaaaaaaaaa" }
  }

  mock_resource "aws_ebs_volume" {
    defaults = { id = "vol-0aaaaaaaaaaaaaaaa" }
  }
}

variables {
  run_name           = "qwen3-0-6b-gsm8k"
  config_file        = "./tests/run.toml"
  pools_file         = "./pools.example.json"
  region             = "us-east-1"
  availability_zones = ["us-east-1a", "us-east-1b"]
  image              = "images.example.org/echo-queue@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  redis_image        = "images.example.org/valkey@sha256:1111111111111111111111111111111111111111111111111111111111111111"
  bucket             = "my-bucket"
  learner            = { instance_type = "g6e.2xlarge", gpus = 1 }
  max_usd_per_hour   = 20
  monthly_budget_usd = 500
  alarm_email        = "me@example.org"
}

run "makes_a_run_with_a_pool_a_learner_and_redis" {
  command = apply

  assert {
    condition     = output.groups == { "l4" = "eq-qwen3-0-6b-gsm8k-l4" } && output.redis_address == null
    error_message = "The pool of this region, and a private Redis."
  }

  assert {
    condition     = output.model == "s3://my-bucket/qwen3-0-6b-gsm8k/model"
    error_message = "Where the model will be."
  }
}

run "gives_redis_an_address_for_another_cloud" {
  command = apply

  variables {
    redis_reachable_from = ["203.0.113.7/32"]
    outside_workers      = true
  }

  assert {
    condition     = output.redis_address == "198.51.100.4" && length(aws_iam_user.outside) == 1
    error_message = "An elastic address, and a user for the bucket."
  }
}

run "has_secrets_that_go_at_once_when_the_run_goes" {
  command = plan

  assert {
    condition     = length(aws_secretsmanager_secret.redis) == 6 && alltrue([for secret in values(aws_secretsmanager_secret.redis) : secret.recovery_window_in_days == 0])
    error_message = "One for each role, and destroy removes them."
  }
}

run "has_a_secret_for_the_controller_where_there_is_one" {
  command = plan

  variables {
    controller = true
  }

  assert {
    condition     = length(aws_secretsmanager_secret.redis) == 7 && aws_secretsmanager_secret.redis["controller"].name == "echo-queue/qwen3-0-6b-gsm8k/controller"
    error_message = "The controller's user has a password, which a person finds by this name."
  }
}

run "raises_an_alarm_before_the_budget_is_gone" {
  command = plan

  assert {
    condition     = aws_budgets_budget.month.limit_amount == "500" && length(aws_budgets_budget.month.notification) == 2
    error_message = "At half of it, and when the forecast exceeds it."
  }
}

run "refuses_to_go_without_an_alarm" {
  command = plan

  variables {
    alarm_email = ""
  }

  expect_failures = [var.alarm_email]
}

run "refuses_an_image_by_tag" {
  command = plan

  variables {
    image = "images.example.org/echo-queue:latest"
  }

  expect_failures = [var.image]
}

run "refuses_a_volume_too_small_for_the_append_only_file" {
  command = plan

  variables {
    redis = { memory_gb = 32, data_gb = 50 }
  }

  expect_failures = [var.redis]
}
