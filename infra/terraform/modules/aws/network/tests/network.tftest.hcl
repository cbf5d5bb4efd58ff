mock_provider "aws" {}

variables {
  name               = "eq-demo"
  region             = "us-east-1"
  availability_zones = ["us-east-1a", "us-east-1b"]
  ports              = { redis = 6380, peers_first = 29600, peers_last = 29615 }
}

run "gives_each_zone_a_private_subnet_and_no_machine_a_public_address" {
  command = apply

  assert {
    condition     = [for zone, subnet in aws_subnet.private : subnet.cidr_block] == ["10.60.16.0/20", "10.60.32.0/20"]
    error_message = "A /20 for each zone, apart from the public one."
  }

  assert {
    condition     = alltrue([for subnet in concat(values(aws_subnet.private), [aws_subnet.public]) : !subnet.map_public_ip_on_launch])
    error_message = "No subnet hands out public addresses."
  }
}

run "reaches_the_bucket_through_a_gateway" {
  command = plan

  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3.service_name == "com.amazonaws.us-east-1.s3"
    error_message = "A gateway endpoint costs nothing."
  }
}

run "opens_nothing_to_the_outside" {
  command = apply

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.outside) == 0
    error_message = "Redis is private unless addresses are named."
  }

  assert {
    condition     = alltrue([for role, rule in aws_vpc_security_group_ingress_rule.redis : rule.referenced_security_group_id == aws_security_group.machine[role].id && rule.from_port == 6380])
    error_message = "Redis is for the groups of the workers and of the learner."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.peers.referenced_security_group_id == aws_security_group.machine["worker"].id
    error_message = "Weights are for the group of the workers."
  }
}

run "lets_only_named_addresses_of_another_cloud_reach_redis" {
  command = plan

  variables {
    redis_reachable_from = ["203.0.113.7/32"]
  }

  assert {
    condition     = [for rule in values(aws_vpc_security_group_ingress_rule.outside) : "${rule.cidr_ipv4} ${rule.from_port}-${rule.to_port}"] == ["203.0.113.7/32 6380-6380"]
    error_message = "One address, one port."
  }
}

run "refuses_redis_open_to_everybody" {
  command = plan

  variables {
    redis_reachable_from = ["0.0.0.0/0"]
  }

  expect_failures = [var.redis_reachable_from]
}

run "refuses_a_zone_of_another_region" {
  command = plan

  variables {
    availability_zones = ["us-east-1a", "us-west-2a"]
  }

  expect_failures = [var.availability_zones]
}

run "refuses_public_addresses_as_network" {
  command = plan

  variables {
    cidr = "8.8.0.0/16"
  }

  expect_failures = [var.cidr]
}

run "refuses_privileged_ports" {
  command = plan

  variables {
    ports = { redis = 80, peers_first = 29600, peers_last = 29615 }
  }

  expect_failures = [var.ports]
}
