"""Analyses that mask heads, alone or in groups, and the importance by which heads are ranked."""
