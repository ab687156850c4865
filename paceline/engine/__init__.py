"""The torch side: models, caches, steps, laws. It knows no gRPC and no protobuf."""
