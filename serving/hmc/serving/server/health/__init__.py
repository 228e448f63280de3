"""Health by the standard service, and reflection."""
