"""What a request asks for and what it is answered: plain data with its own checks, without runtime or transport."""
