"""The gRPC side that the three services share. It knows no torch and no model."""
