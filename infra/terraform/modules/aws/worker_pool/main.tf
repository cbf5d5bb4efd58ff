# One Auto Scaling group for each pool: spot machines alone, of whichever type and zone has the most capacity.

data "aws_ssm_parameter" "machine_image" {
  name = var.machine_image
}

resource "aws_launch_template" "worker" {
  #checkov:skip=CKV_AWS_88:Each network interface says below that it gets no public address
  name                   = var.pool.group_name
  image_id               = data.aws_ssm_parameter.machine_image.insecure_value
  user_data              = var.user_data_gzip
  ebs_optimized          = true
  update_default_version = true

  iam_instance_profile {
    name = var.profile
  }

  # One hop: the machine itself reaches the metadata server, and no container of it does.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [var.security_group]
  }

  # An image of 10 GB is unpacked at every boot: the default throughput of 125 MB/s would make that minutes longer.
  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      volume_type           = "gp3"
      volume_size           = var.pool.disk_gb
      throughput            = 500
      iops                  = 4000
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume"])

    content {
      resource_type = tag_specifications.key
      tags          = merge(var.tags, { Name = var.pool.group_name })
    }
  }
}

resource "aws_autoscaling_group" "pool" {
  name                      = var.pool.group_name
  min_size                  = 0
  max_size                  = var.pool.max_machines
  desired_capacity          = var.pool.machines
  vpc_zone_identifier       = [for zone, subnet in var.subnets : subnet if var.pool.zones == null || contains(coalesce(var.pool.zones, [zone]), zone)]
  capacity_rebalance        = true
  health_check_type         = "EC2"
  health_check_grace_period = 300
  default_cooldown          = 0
  # Terraform does not wait for spot capacity, which may come hours later.
  wait_for_capacity_timeout = "0"
  force_delete              = true
  termination_policies      = ["NewestInstance"]
  # Moving machines between zones for balance alone would cost their work.
  suspended_processes = ["AZRebalance"]

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 0
      on_demand_percentage_above_base_capacity = 0
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.worker.id
        version            = "$Latest"
      }

      dynamic "override" {
        for_each = var.pool.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Name = var.pool.group_name })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  lifecycle {
    # The size belongs to a controller, or to a person, once the pool exists.
    ignore_changes = [desired_capacity]
  }
}
