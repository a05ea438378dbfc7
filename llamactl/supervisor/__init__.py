"""llamactl.service: one event loop that turns what happens into the scheduler's events and carries out its effects."""
