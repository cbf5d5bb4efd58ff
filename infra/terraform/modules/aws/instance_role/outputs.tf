output "profile" {
  description = "Name of the instance profile."
  value       = aws_iam_instance_profile.machine.name
}
