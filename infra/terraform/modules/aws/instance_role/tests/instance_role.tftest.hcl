mock_provider "aws" {}

variables {
  name     = "eq-demo-worker"
  policies = { store = "{\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\", \"Action\": \"s3:GetObject\", \"Resource\": \"arn:aws:s3:::my-bucket/demo/weights/*\"}]}" }
}

run "can_be_assumed_by_machines_alone" {
  command = plan

  assert {
    condition     = jsondecode(aws_iam_role.machine.assume_role_policy).Statement == [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
    error_message = "EC2 and nobody else."
  }
}

run "refuses_all_actions_of_a_service" {
  command = plan

  variables {
    policies = { store = "{\"Statement\": [{\"Effect\": \"Allow\", \"Action\": [\"s3:GetObject\", \"s3:*\"], \"Resource\": \"arn:aws:s3:::my-bucket/*\"}]}" }
  }

  expect_failures = [var.policies]
}

run "refuses_an_action_on_every_resource" {
  command = plan

  variables {
    policies = { store = "{\"Statement\": [{\"Effect\": \"Allow\", \"Action\": \"s3:GetObject\", \"Resource\": \"*\"}]}" }
  }

  expect_failures = [var.policies]
}

run "refuses_every_parameter_of_the_account" {
  command = plan

  variables {
    policies = { store = "{\"Statement\": [{\"Effect\": \"Allow\", \"Action\": [\"ssm:GetParameter\"], \"Resource\": \"*\"}]}" }
  }

  expect_failures = [var.policies]
}

run "refuses_what_is_no_policy" {
  command = plan

  variables {
    policies = { store = "s3 read" }
  }

  expect_failures = [var.policies]
}
