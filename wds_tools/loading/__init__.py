"""From sample ids to batches in the training loop: workers, shared memory, copies to CUDA, resume."""
