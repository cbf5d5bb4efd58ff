output "group" {
  description = "Name of the Auto Scaling group, whose desired capacity is the pool's number of machines."
  value       = aws_autoscaling_group.pool.name
}
