"""The OpenAPI document: the RPCs from the descriptors of the protocol, and the other paths."""
