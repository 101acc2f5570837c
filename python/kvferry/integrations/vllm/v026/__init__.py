"""vLLM 0.26 to 0.33: `OffloadingConfig`, `OffloadingWorker`, keys with their group."""
