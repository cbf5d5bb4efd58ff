resource "aws_iam_role" "machine" {
  name = var.name
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "machine" {
  for_each = var.policies
  name     = each.key
  role     = aws_iam_role.machine.id
  policy   = each.value
}

resource "aws_iam_instance_profile" "machine" {
  name = var.name
  role = aws_iam_role.machine.name
}
