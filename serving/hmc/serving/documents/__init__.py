"""Translates texts of any length: divides them, translates their sentences together, and puts the translations back
where the sentences were."""
