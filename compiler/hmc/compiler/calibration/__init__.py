"""Ranges of activations, and the layers that stay in fp32."""
