"""Pages of the console about models in use, jobs, requests, keys and accounts."""
