"""The gRPC server: settings, services, interceptor, metrics, and the server that is made of them."""
