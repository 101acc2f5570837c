"""Random histories that go through two managers side by side, with everything visible compared."""
