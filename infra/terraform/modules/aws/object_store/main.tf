resource "aws_s3_bucket" "run" {
  #checkov:skip=CKV_AWS_21:Objects are put once and never changed, so that a second version of one never comes to be
  #checkov:skip=CKV_AWS_144:A run lives for days and can be trained again; a copy in another region would double its cost
  #checkov:skip=CKV_AWS_145:SSE-S3 encrypts at rest; a key of one's own would give every role rights on KMS besides
  #checkov:skip=CKV_AWS_18:Access logs of weights that workers fetch every update would outgrow what they describe
  #checkov:skip=CKV2_AWS_62:Nothing reacts to objects; Redis says what is new
  bucket        = var.bucket
  force_destroy = !var.keep_objects
}

resource "aws_s3_bucket_public_access_block" "run" {
  bucket                  = aws_s3_bucket.run.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "run" {
  bucket = aws_s3_bucket.run.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "run" {
  bucket = aws_s3_bucket.run.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# The learner removes the weights and checkpoints that it no longer needs. Parts of uploads that were killed in the
# middle show in no listing, so that nobody but this rule can (docs/operations.md).
resource "aws_s3_bucket_lifecycle_configuration" "run" {
  bucket = aws_s3_bucket.run.id

  rule {
    id     = "parts"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_bucket_policy" "tls" {
  bucket = aws_s3_bucket.run.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = ["arn:${var.partition}:s3:::${var.bucket}", "arn:${var.partition}:s3:::${var.bucket}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
  depends_on = [aws_s3_bucket_public_access_block.run]
}
