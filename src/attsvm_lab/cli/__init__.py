"""The laboratory's commands: `attsvm claims`, `attsvm reproduce` and `attsvm sweep`."""

import attsvm.cli.app  # attsvm.cli imports these commands, so its import must come first
