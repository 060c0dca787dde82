"""What every package uses: validation, optional dependencies, lazy names, progress, workers and pages."""
