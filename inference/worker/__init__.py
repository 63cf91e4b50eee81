"""Engines behind the queue: take messages, keep models, hand on requests, acknowledge."""
