mock_provider "aws" {}

variables {
  bucket = "my-bucket"
}

run "makes_a_bucket_that_nobody_outside_reads" {
  command = plan

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.run.block_public_acls, aws_s3_bucket_public_access_block.run.block_public_policy,
      aws_s3_bucket_public_access_block.run.ignore_public_acls, aws_s3_bucket_public_access_block.run.restrict_public_buckets,
    ])
    error_message = "All four blocks."
  }
}

run "refuses_requests_without_tls" {
  command = plan

  assert {
    condition     = jsondecode(aws_s3_bucket_policy.tls.policy).Statement[0].Effect == "Deny" && jsondecode(aws_s3_bucket_policy.tls.policy).Statement[0].Condition.Bool["aws:SecureTransport"] == "false"
    error_message = "The bucket's own policy."
  }
}

run "removes_parts_of_uploads_that_were_killed" {
  command = plan

  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.run.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 1
    error_message = "After a day."
  }
}

run "leaves_nothing_behind_unless_it_is_told_to" {
  command = plan

  assert {
    condition     = aws_s3_bucket.run.force_destroy
    error_message = "destroy empties the bucket."
  }
}

run "keeps_objects_if_it_is_told_to" {
  command = plan

  variables {
    keep_objects = true
  }

  assert {
    condition     = !aws_s3_bucket.run.force_destroy
    error_message = "destroy refuses."
  }
}

run "refuses_a_bucket_with_a_dot" {
  command = plan

  variables {
    bucket = "my.bucket"
  }

  expect_failures = [var.bucket]
}
