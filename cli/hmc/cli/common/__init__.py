"""What the commands share. No command is in here."""
