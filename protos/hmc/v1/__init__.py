"""The gRPC service: generated from the `.proto` files beside this module by `make protos`; never edited by hand."""
