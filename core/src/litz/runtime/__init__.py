"""The runtime: cache, build, load, launch, memory pool, CUDA graphs. Imports none of the compiler's stages."""
