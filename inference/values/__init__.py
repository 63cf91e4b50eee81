"""Plain values that every part uses: requests, events, sampling parameters, callers; standard library only."""
