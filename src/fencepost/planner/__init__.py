"""The planner: housekeeping. Every pass is idempotent, so any number of processes may run it at once."""
