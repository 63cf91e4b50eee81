"""Record requests: metrics, traces, usage, logs and stored responses."""
