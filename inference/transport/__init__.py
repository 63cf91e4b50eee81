"""What web processes and workers share in Redis: queues, event streams and control messages, both ends."""
