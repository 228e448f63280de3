"""Relevance of heads by layer-wise relevance propagation (Voita et al. 2019, appendix A)."""
