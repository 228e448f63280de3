"""What the papers claim, with their numbers, and what decides whether it holds here."""
