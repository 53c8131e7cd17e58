"""The `litz` command: `plugins`, `options`, `cache`, `explain`, and those of plugins. It begins in `main.main`."""
