"""What is to survive: segments of messages on disk, written by a thread of its own."""
