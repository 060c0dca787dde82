"""Nuclear and spectral programs: one interior point on a shrinking working set, compiled where small."""
