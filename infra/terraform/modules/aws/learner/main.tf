# The machine of the learner, which also runs `services`, Celery's worker and the submission.

data "aws_ssm_parameter" "machine_image" {
  name = var.machine_image
}

module "role" {
  source   = "../instance_role"
  name     = "${var.name}-learner"
  policies = var.policies
}

resource "aws_instance" "learner" {
  #checkov:skip=CKV_AWS_126:Minute-wise metrics of one machine are not worth their price; the run reports its own
  ami                         = data.aws_ssm_parameter.machine_image.insecure_value
  instance_type               = var.instance_type
  availability_zone           = var.availability_zone
  subnet_id                   = var.subnet
  vpc_security_group_ids      = [var.security_group]
  iam_instance_profile        = module.role.profile
  associate_public_ip_address = false
  ebs_optimized               = true
  user_data_base64            = var.user_data_gzip
  user_data_replace_on_change = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.root_disk_gb
    throughput  = 500
    iops        = 4000
    encrypted   = true
  }

  tags = { Name = "${var.name}-learner" }

  lifecycle {
    # A newer image alone is no reason to restart the learner in the middle of a run.
    ignore_changes = [ami]
  }
}

resource "aws_volume_attachment" "data" {
  device_name                    = "/dev/sdf"
  volume_id                      = var.data_volume
  instance_id                    = aws_instance.learner.id
  stop_instance_before_detaching = true
}
