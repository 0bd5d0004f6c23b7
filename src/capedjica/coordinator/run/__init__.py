"""One run of a study: driven, written down as it goes, resumed, reported and compared."""
