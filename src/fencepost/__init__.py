"""fencepost."""
