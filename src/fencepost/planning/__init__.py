"""Pure functions: values in, values out. No connection, no clock, no random source that was not passed in."""
