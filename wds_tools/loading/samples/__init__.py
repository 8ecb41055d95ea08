"""Sample numbers become values: what one worker computes, and what the batch gets afterwards."""
