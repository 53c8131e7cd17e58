"""The `litz` command: `doctor`, `plugins`, `options`, `cache` and `explain`. `main.main` is its entry point."""
