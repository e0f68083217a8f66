"""Do two versions of a package compute the same? Both run in child processes, with one seed and the same weights.

    versions -> run (a child each) -> compare (a child) -> Comparison

This imports and runs the user's code. The parent imports neither MLX nor it.
"""
