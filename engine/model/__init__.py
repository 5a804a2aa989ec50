"""The model: weights in the engine's layout, and layers made of kernels. Stateless: caches are passed in."""
