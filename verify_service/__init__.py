"""The verify tier: the target model as a gRPC service."""
