"""TilePrograms: what one program of a kernel does with blocks of elements, as data. See docs/tiles.md."""
