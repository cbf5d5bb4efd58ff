# Machines have no address that the internet could reach. They reach images and packages through one NAT, and the bucket
# through a gateway endpoint, which costs nothing however many weights pass it.

resource "aws_vpc" "run" {
  #checkov:skip=CKV2_AWS_11:Flow logs cost more than they tell here: nothing listens to the outside by default
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

# The group that AWS makes by itself lets its members speak to one another; nobody is to use it.
resource "aws_default_security_group" "unused" {
  vpc_id = aws_vpc.run.id
}

resource "aws_internet_gateway" "run" {
  vpc_id = aws_vpc.run.id
  tags   = { Name = var.name }
}

resource "aws_subnet" "public" {
  vpc_id                  = aws_vpc.run.id
  availability_zone       = var.availability_zones[0]
  cidr_block              = cidrsubnet(var.cidr, 8, 0)
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-public" }
}

# A /20 has room for 4,000 machines in each zone.
resource "aws_subnet" "private" {
  for_each                = { for number, zone in var.availability_zones : zone => number }
  vpc_id                  = aws_vpc.run.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.cidr, 4, each.value + 1)
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_eip" "nat" {
  domain = "vpc"
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "run" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.public.id
  tags          = { Name = var.name }
  depends_on    = [aws_internet_gateway.run]
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.run.id
  tags   = { Name = "${var.name}-public" }
}

resource "aws_route" "out" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.run.id
}

resource "aws_route_table_association" "public" {
  subnet_id      = aws_subnet.public.id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.run.id
  tags   = { Name = "${var.name}-private" }
}

resource "aws_route" "nat" {
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.run.id
}

resource "aws_route_table_association" "private" {
  for_each       = aws_subnet.private
  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.run.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id, aws_route_table.public.id]
  tags              = { Name = "${var.name}-s3" }
}

# Who may speak to whom: everybody to Redis, workers to workers, and each machine to the outside over HTTPS.

resource "aws_security_group" "machine" {
  #checkov:skip=CKV2_AWS_5:The machines of the other modules carry it
  for_each    = toset(["worker", "learner", "redis"])
  name        = "${var.name}-${each.key}"
  description = "Machines of the role ${each.key}"
  vpc_id      = aws_vpc.run.id
  tags        = { Name = "${var.name}-${each.key}" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "https" {
  for_each          = aws_security_group.machine
  security_group_id = each.value.id
  description       = "Images, packages, the bucket, and the cloud's own interfaces"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "redis" {
  for_each                     = toset(["worker", "learner"])
  security_group_id            = aws_security_group.machine[each.key].id
  description                  = "Redis"
  referenced_security_group_id = aws_security_group.machine["redis"].id
  ip_protocol                  = "tcp"
  from_port                    = var.ports.redis
  to_port                      = var.ports.redis
}

resource "aws_vpc_security_group_ingress_rule" "redis" {
  for_each                     = toset(["worker", "learner"])
  security_group_id            = aws_security_group.machine["redis"].id
  description                  = "Redis, for the role ${each.key}"
  referenced_security_group_id = aws_security_group.machine[each.key].id
  ip_protocol                  = "tcp"
  from_port                    = var.ports.redis
  to_port                      = var.ports.redis
}

resource "aws_vpc_security_group_ingress_rule" "outside" {
  for_each          = toset(var.redis_reachable_from)
  security_group_id = aws_security_group.machine["redis"].id
  description       = "Redis over TLS, for workers of other clouds"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = var.ports.redis
  to_port           = var.ports.redis
}

resource "aws_vpc_security_group_ingress_rule" "peers" {
  security_group_id            = aws_security_group.machine["worker"].id
  description                  = "Weights, from worker to worker"
  referenced_security_group_id = aws_security_group.machine["worker"].id
  ip_protocol                  = "tcp"
  from_port                    = var.ports.peers_first
  to_port                      = var.ports.peers_last
}

resource "aws_vpc_security_group_egress_rule" "peers" {
  security_group_id            = aws_security_group.machine["worker"].id
  description                  = "Weights, from worker to worker"
  referenced_security_group_id = aws_security_group.machine["worker"].id
  ip_protocol                  = "tcp"
  from_port                    = var.ports.peers_first
  to_port                      = var.ports.peers_last
}
