"""One request in the web process, from a plan to its last event; knows no API's shapes."""
