"""Each API's words: a body to a plan, events to a response; no HTTP, no queue, no rows."""
