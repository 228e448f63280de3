"""Load on a server: calls that come at times fixed beforehand, what became of them, and the rate that it carries."""
