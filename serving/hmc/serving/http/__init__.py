"""The HTTP listener: JSON twins of every RPC, LibreTranslate's API, OpenAPI, metrics, and the playground."""
