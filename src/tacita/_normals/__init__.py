"""Float32 normals: what they are, and kernels that make the same bits in less time."""
