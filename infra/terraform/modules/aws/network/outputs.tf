output "private_subnets" {
  description = "Availability zone → id and addresses of its private subnet."
  value       = { for zone, subnet in aws_subnet.private : zone => { id = subnet.id, cidr = subnet.cidr_block } }
}

output "public_subnet" {
  description = "Id and addresses of the public subnet, for a Redis that other clouds reach."
  value       = { id = aws_subnet.public.id, cidr = aws_subnet.public.cidr_block }
}

output "security_groups" {
  description = "Role (worker, learner, redis) → id of its security group."
  value       = { for role, group in aws_security_group.machine : role => group.id }
}

output "s3_endpoint" {
  description = "Id of the gateway endpoint through which the bucket is reached."
  value       = aws_vpc_endpoint.s3.id
}
