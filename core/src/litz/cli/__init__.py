"""The `litz` command: `plugins`, `options`, `cache`, and those of plugins. It begins in `main.main`."""
