"""One function as a dataflow graph, and what is known of its values."""
