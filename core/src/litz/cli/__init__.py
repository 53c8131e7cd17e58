"""The `litz` command: `plugins`, `options`, `cache`, and those of plugins. `main.main` runs first."""
