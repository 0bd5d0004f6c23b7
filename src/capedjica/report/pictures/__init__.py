"""Pictures of a report: charts, slices of a brain, the viewer."""
