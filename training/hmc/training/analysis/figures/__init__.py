"""Figures of the analyses, drawn from their JSON data. No other package of the analyses imports matplotlib."""
