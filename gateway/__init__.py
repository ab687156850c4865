"""The gateway: runs rounds between a draft tier and a verify tier. It holds no model."""
