"""The little world that the embedded model knows: geometry, pictures, walks through it, and data sets of them."""
