"""The gRPC server: settings, servicers, converters, interceptors, metrics, and the app that puts them together."""
