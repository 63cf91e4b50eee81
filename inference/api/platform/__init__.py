"""HTTP endpoints of our own: keys, usage, jobs, aliases, lifecycle, tokenising, probes."""
