"""What functions were called with in a real run: `fuselint record -- python generate.py`.

    command -> its Python process, watched (observer) -> a file a process -> .fuselint/facts.json

The user's program runs as it would without; only what it is called with is noted, and no array is evaluated.
"""
