"""Run engines in a worker process: take messages, load models, run requests, record their ends."""
