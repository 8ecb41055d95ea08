"""From sample numbers to batches in the training loop: workers, shared memory, copies to CUDA, resume."""
