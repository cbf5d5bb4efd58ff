mock_provider "aws" {}

variables {
  name              = "eq-demo"
  availability_zone = "us-east-1a"
  subnet            = "subnet-0aaaaaaaaaaaaaaaa"
  address           = "10.60.16.10"
  security_group    = "sg-0aaaaaaaaaaaaaaaa"
  data_volume       = "vol-0aaaaaaaaaaaaaaaa"
  user_data_gzip    = "H4sIAAAAAAAA"
  policies          = {}
}

run "stands_at_its_address_without_a_public_one" {
  command = plan

  assert {
    condition     = aws_instance.redis.private_ip == "10.60.16.10" && !aws_instance.redis.associate_public_ip_address && length(aws_eip_association.outside) == 0
    error_message = "Private unless an address is given."
  }
}

run "keeps_containers_from_the_metadata_server" {
  command = plan

  assert {
    condition     = aws_instance.redis.metadata_options[0].http_tokens == "required" && aws_instance.redis.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "IMDSv2 and one hop."
  }
}

run "keeps_its_data_on_a_volume_that_outlives_the_machine" {
  command = plan

  assert {
    condition     = aws_volume_attachment.data.volume_id == "vol-0aaaaaaaaaaaaaaaa" && aws_volume_attachment.data.stop_instance_before_detaching && aws_instance.redis.root_block_device[0].encrypted
    error_message = "The volume is attached, and never pulled from a running server."
  }
}

run "takes_a_public_address_if_other_clouds_are_to_reach_it" {
  command = plan

  variables {
    public            = true
    public_address_id = "eipalloc-0aaaaaaaaaaaaaaaa"
  }

  assert {
    condition     = aws_eip_association.outside[0].allocation_id == "eipalloc-0aaaaaaaaaaaaaaaa"
    error_message = "The elastic address."
  }
}

run "refuses_a_host_name_as_address" {
  command = plan

  variables {
    address = "redis.example.org"
  }

  expect_failures = [var.address]
}

run "refuses_a_type_that_is_none" {
  command = plan

  variables {
    instance_type = "large"
  }

  expect_failures = [var.instance_type]
}
