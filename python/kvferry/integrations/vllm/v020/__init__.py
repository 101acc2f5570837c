"""vLLM 0.20 to 0.24: keys with their group, one look-up a key, `OffloadingHandler`."""
