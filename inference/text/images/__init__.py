"""Pictures in requests: headers, decoding in a child process, and their places in a prompt."""
