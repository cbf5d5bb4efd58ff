# Redis on a machine of its own, on demand. ElastiCache has no append-only file, and MemoryDB costs several times as much.

data "aws_ssm_parameter" "machine_image" {
  name = var.machine_image
}

module "role" {
  source   = "../instance_role"
  name     = "${var.name}-redis"
  policies = var.policies
}

resource "aws_instance" "redis" {
  #checkov:skip=CKV_AWS_126:Minute-wise metrics of one machine are not worth their price; Redis itself is watched
  #checkov:skip=CKV_AWS_88:Only the elastic address, if there is one, makes it reachable, and the security group by whom
  ami                         = data.aws_ssm_parameter.machine_image.insecure_value
  instance_type               = var.instance_type
  availability_zone           = var.availability_zone
  subnet_id                   = var.subnet
  private_ip                  = var.address
  vpc_security_group_ids      = [var.security_group]
  iam_instance_profile        = module.role.profile
  associate_public_ip_address = var.public
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
    volume_size = 20
    encrypted   = true
  }

  tags = { Name = "${var.name}-redis" }

  lifecycle {
    # A newer image alone is no reason to restart Redis in the middle of a run.
    ignore_changes = [ami]
  }
}

resource "aws_volume_attachment" "data" {
  device_name                    = "/dev/sdf"
  volume_id                      = var.data_volume
  instance_id                    = aws_instance.redis.id
  stop_instance_before_detaching = true
}

resource "aws_eip_association" "outside" {
  count         = var.public ? 1 : 0
  allocation_id = var.public_address_id
  instance_id   = aws_instance.redis.id
}
