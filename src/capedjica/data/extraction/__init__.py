"""Time series of regions and voxels from one pass over an image, equal to those of nilearn's maskers."""
