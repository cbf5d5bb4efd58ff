output "learner" {
  description = "Id of the learner's machine: `aws ssm start-session --target ID`."
  value       = module.learner.instance
}

output "redis" {
  description = "Id of the machine of Redis."
  value       = module.redis.instance
}

output "redis_address" {
  description = "Address of Redis for workers of other clouds; null if it has none."
  value       = local.public_redis ? aws_eip.redis[0].public_ip : null
}

output "groups" {
  description = "Pool → its Auto Scaling group."
  value       = { for name, pool in module.worker_pool : name => pool.group }
}

output "elsewhere" {
  description = "Pools of the file that belong to other clouds or regions."
  value       = module.plan.elsewhere
}

output "cost" {
  description = "Expected price of the pools in USD an hour, as they begin and at their limits. The other machines come on top."
  value       = module.plan.cost
}

output "model" {
  description = "Where the trained model lies once the run is finished."
  value       = "s3://${module.object_store.bucket}/${var.run_name}/model"
}
