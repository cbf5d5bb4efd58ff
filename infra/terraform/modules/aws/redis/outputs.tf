output "instance" {
  description = "Id of the machine, for a session through SSM."
  value       = aws_instance.redis.id
}
