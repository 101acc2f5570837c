"""Programs that measure kvferry. `make bench` runs them; nothing here asserts a time."""
