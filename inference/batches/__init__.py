"""Run batches: files of requests, line by line."""
