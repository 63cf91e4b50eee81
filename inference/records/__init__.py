"""What is recorded of requests: metrics, traces, usage, logs and stored responses."""
