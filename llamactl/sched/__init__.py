"""Which models may run, and which must go? Pure decisions: events in, effects out, the time as an argument."""
