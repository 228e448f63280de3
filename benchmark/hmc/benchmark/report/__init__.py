"""What a benchmark found: results as data and JSON, tables for the terminal, a picture and a page."""
