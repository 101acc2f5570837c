"""vLLM 0.14 to 0.18: keys are block hashes, one KV-cache group, tensors as the model has them."""
