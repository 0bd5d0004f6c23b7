"""Post-processing of maps: stability, denoising, number of recoverable components, template shift."""
