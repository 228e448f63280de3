"""`hmc translate --engine`: a corpus of any size to translations in numbered files, each whole or not there."""
