"""Which heads a level keeps, and how wide its heads are stored."""
