"""The planner: leadership and the housekeeping passes. Each pass is idempotent, and a leader's writes are fenced."""
