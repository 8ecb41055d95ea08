"""Batches under way: slots, tasks, copies to the device, and how long each stage takes."""
