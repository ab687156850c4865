"""The draft tier: sources of draft tokens as a gRPC service."""
