"""The service behind Ray Serve: replicas of it that Ray starts, replaces and scales, behind Ray's gRPC proxy.

Needs the extra `ray`. `hmc serve --ray` runs it on one machine; `application` is what a cluster's file names.
"""
