"""Figures of the analyses, drawn from their JSON data. Only this package imports matplotlib."""
