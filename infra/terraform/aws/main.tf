provider "aws" {
  region = var.region

  default_tags {
    tags = { "echo-queue-run" = var.run_name }
  }
}

data "aws_caller_identity" "account" {}

data "aws_partition" "account" {}

locals {
  public_redis = length(var.redis_reachable_from) > 0
  zone         = var.availability_zones[0]
  redis_subnet = local.public_redis ? module.network.public_subnet : module.network.private_subnets[local.zone]
  # The tenth address: AWS takes the first four and the last of each subnet.
  redis_host = cidrhost(local.redis_subnet.cidr, 10)
}

# What outlives a machine: passwords, the append-only file, and the run's directory.

resource "aws_secretsmanager_secret" "redis" {
  #checkov:skip=CKV_AWS_149:The account's own key encrypts them; a key of one's own would give every role rights on KMS besides
  #checkov:skip=CKV2_AWS_57:The Redis machine makes them once for a run; a rotation would end every connection of it
  for_each                = toset(concat(["admin", "submitter", "worker", "learner", "monitor", "celery"], var.controller ? ["controller"] : []))
  name                    = "echo-queue/${var.run_name}/${each.key}"
  description             = "Password of the Redis user ${each.key} and the authority of the server's certificate"
  recovery_window_in_days = 0
}

resource "aws_ebs_volume" "data" {
  #checkov:skip=CKV_AWS_189:The account's own key encrypts it
  for_each          = { redis = var.redis.data_gb, learner = var.learner.data_gb }
  availability_zone = local.zone
  size              = each.value
  type              = "gp3"
  encrypted         = true
  tags              = { Name = "${module.plan.prefix}-${each.key}" }
}

resource "aws_eip" "redis" {
  #checkov:skip=CKV2_AWS_19:The module of Redis attaches it
  count  = local.public_redis ? 1 : 0
  domain = "vpc"
  tags   = { Name = "${module.plan.prefix}-redis" }
}

module "plan" {
  source            = "../modules/fleet_plan"
  run_name          = var.run_name
  config            = file(var.config_file)
  pools             = file(var.pools_file)
  cloud             = "aws"
  region            = var.region
  image             = var.image
  redis_image       = var.redis_image
  max_usd_per_hour  = var.max_usd_per_hour
  bucket            = var.bucket
  store_region      = var.region
  redis_host        = local.redis_host
  redis_public_host = local.public_redis ? aws_eip.redis[0].public_ip : null
  redis_memory_gb   = var.redis.memory_gb
  learner_gpus      = var.learner.gpus
  secrets           = { for role, secret in aws_secretsmanager_secret.redis : role => secret.arn }
  data_volumes      = { for role, volume in aws_ebs_volume.data : role => volume.id }
  account           = { partition = data.aws_partition.account.partition, id = data.aws_caller_identity.account.account_id }
}

module "network" {
  source               = "../modules/aws/network"
  name                 = "eq-${var.run_name}"
  region               = var.region
  availability_zones   = var.availability_zones
  ports                = { redis = 6380, peers_first = 29600, peers_last = 29615 }
  redis_reachable_from = var.redis_reachable_from
}

module "object_store" {
  source       = "../modules/aws/object_store"
  bucket       = var.bucket
  keep_objects = var.keep_objects
  partition    = data.aws_partition.account.partition
}

resource "aws_s3_object" "groups" {
  bucket  = module.object_store.bucket
  key     = "${var.run_name}/groups"
  content = module.plan.groups_file
}

module "redis" {
  source            = "../modules/aws/redis"
  name              = module.plan.prefix
  availability_zone = local.zone
  subnet            = local.redis_subnet.id
  address           = local.redis_host
  public            = local.public_redis
  public_address_id = local.public_redis ? aws_eip.redis[0].id : null
  security_group    = module.network.security_groups["redis"]
  instance_type     = var.redis.instance_type
  data_volume       = aws_ebs_volume.data["redis"].id
  user_data_gzip    = module.plan.user_data_gzip["redis"]
  policies          = { machine = module.plan.machine_policies["redis"] }
}

module "learner" {
  source            = "../modules/aws/learner"
  name              = module.plan.prefix
  availability_zone = local.zone
  subnet            = module.network.private_subnets[local.zone].id
  security_group    = module.network.security_groups["learner"]
  instance_type     = var.learner.instance_type
  data_volume       = aws_ebs_volume.data["learner"].id
  user_data_gzip    = module.plan.user_data_gzip["learner"]
  policies          = { machine = module.plan.machine_policies["learner"], store = module.plan.store_policies["learner"] }
  depends_on        = [module.object_store]
}

module "worker_role" {
  source   = "../modules/aws/instance_role"
  name     = "${module.plan.prefix}-worker"
  policies = { machine = module.plan.machine_policies["worker"], store = module.plan.store_policies["worker"] }
}

module "worker_pool" {
  source         = "../modules/aws/worker_pool"
  for_each       = module.plan.pools
  pool           = each.value
  subnets        = { for zone, subnet in module.network.private_subnets : zone => subnet.id }
  security_group = module.network.security_groups["worker"]
  profile        = module.worker_role.profile
  user_data_gzip = module.plan.user_data_gzip["pool/${each.key}"]
  tags           = { "echo-queue-run" = var.run_name, "echo-queue-pool" = each.key }
}

# Workers of other clouds have no role here. Terraform never sees the key: a person makes it and stores it over there.
resource "aws_iam_user" "outside" {
  #checkov:skip=CKV_AWS_273:It is a machine's user
  count         = var.outside_workers ? 1 : 0
  name          = "${module.plan.prefix}-outside-worker"
  force_destroy = true
}

resource "aws_iam_user_policy" "outside" {
  #checkov:skip=CKV_AWS_40:It is the only user of its kind
  count  = var.outside_workers ? 1 : 0
  name   = "store"
  user   = aws_iam_user.outside[0].name
  policy = module.plan.store_policies["worker"]
}

# It watches the whole account: a filter by tag would see nothing until the tag is activated for billing.
resource "aws_budgets_budget" "month" {
  name         = module.plan.prefix
  budget_type  = "COST"
  limit_amount = tostring(var.monthly_budget_usd)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  notification {
    comparison_operator        = "GREATER_THAN"
    threshold                  = 50
    threshold_type             = "PERCENTAGE"
    notification_type          = "ACTUAL"
    subscriber_email_addresses = [var.alarm_email]
  }

  notification {
    comparison_operator        = "GREATER_THAN"
    threshold                  = 100
    threshold_type             = "PERCENTAGE"
    notification_type          = "FORECASTED"
    subscriber_email_addresses = [var.alarm_email]
  }
}
