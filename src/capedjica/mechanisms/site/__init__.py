"""A site's side of private means: clipping, rounding, masking, recording and charging."""
