"""TilePrograms verified (`rules`) and run on the CPU (`interpret`)."""
