"""The discrete-event simulator behind scripts/simulate."""
