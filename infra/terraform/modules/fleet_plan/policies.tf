# The policies of docs/rights.md, word for word: tests/infra compares them.
locals {
  partition = try(var.account.partition, "aws")
  objects   = "arn:${local.partition}:s3:::${var.bucket}/${var.run_name}"
  list      = { Effect = "Allow", Action = "s3:ListBucket", Resource = "arn:${local.partition}:s3:::${var.bucket}" }

  store_policies = {
    worker = [
      local.list,
      {
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = ["${local.objects}/weights/*", "${local.objects}/prompts/*", "${local.objects}/base/*"]
      },
      { Effect = "Allow", Action = "s3:PutObject", Resource = "${local.objects}/replay/*" },
      { Effect = "Allow", Action = ["s3:GetObject", "s3:PutObject"], Resource = "${local.objects}/partials/*" },
    ]
    submitter = [
      local.list,
      { Effect = "Allow", Action = ["s3:GetObject", "s3:PutObject"], Resource = "${local.objects}/prompts/*" },
    ]
    learner = [
      local.list,
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        Resource = "${local.objects}/*"
      },
    ]
    redis = []
  }

  # What a machine needs besides the store, for the cloud's own part of it.
  machine_policies = { for machine, roles in local.roles : machine => concat(
    [{
      Effect   = "Allow"
      Action   = machine == "redis" ? ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"] : ["secretsmanager:GetSecretValue"]
      Resource = [for role in roles : var.secrets[role] if contains(keys(var.secrets), role)]
    }],
    # A session through SSM instead of SSH. AWS offers no narrower resource for these actions.
    [{
      Effect = "Allow"
      Action = [
        "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
      ]
      Resource = "*"
    }],
    local.ecr_repository == null ? [] : [
      { Effect = "Allow", Action = ["ecr:GetAuthorizationToken"], Resource = "*" },
      {
        Effect   = "Allow"
        Action   = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = "arn:${local.partition}:ecr:${local.ecr_repository[1]}:${local.ecr_repository[0]}:repository/${local.ecr_repository[2]}"
      },
    ],
    # The learner ends the pools. A worker's machine ends itself, and makes its group smaller: AWS has no narrower right.
    machine == "redis" || length(local.aws_groups) == 0 ? [] : [{
      Effect = "Allow"
      Action = [machine == "learner" ? "autoscaling:SetDesiredCapacity" : "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource = [
        for group, region in local.aws_groups :
        "arn:${local.partition}:autoscaling:${region}:${try(var.account.id, "")}:autoScalingGroup:*:autoScalingGroupName/${group}"
      ]
    }],
  ) }
}
