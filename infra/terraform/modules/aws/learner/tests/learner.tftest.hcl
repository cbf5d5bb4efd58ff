mock_provider "aws" {}

variables {
  name              = "eq-demo"
  availability_zone = "us-east-1a"
  subnet            = "subnet-0aaaaaaaaaaaaaaaa"
  security_group    = "sg-0aaaaaaaaaaaaaaaa"
  instance_type     = "g6e.2xlarge"
  data_volume       = "vol-0aaaaaaaaaaaaaaaa"
  user_data_gzip    = "H4sIAAAAAAAA"
  policies          = {}
}

run "is_on_demand_and_private" {
  command = plan

  assert {
    condition     = !aws_instance.learner.associate_public_ip_address && aws_instance.learner.root_block_device[0].encrypted
    error_message = "No public address, an encrypted disk."
  }
}

run "keeps_containers_from_the_metadata_server" {
  command = plan

  assert {
    condition     = aws_instance.learner.metadata_options[0].http_tokens == "required" && aws_instance.learner.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "IMDSv2 and one hop."
  }
}

run "refuses_a_zone_that_is_none" {
  command = plan

  variables {
    availability_zone = "us-east-1"
  }

  expect_failures = [var.availability_zone]
}

run "refuses_a_machine_image_by_id" {
  command = plan

  variables {
    machine_image = "ami-0123456789abcdef0"
  }

  expect_failures = [var.machine_image]
}
