"""Files of requests, run line by line."""
