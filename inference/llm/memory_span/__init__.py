"""How far back each layer of a network reaches in a text: decays, states, attended distances."""
