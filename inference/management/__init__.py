"""Django management commands of the app."""
