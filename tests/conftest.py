"""Settings of the whole suite."""

from attsvm.training.compilation import compile_quickly

# Most of the suite's time would be XLA compiling small programs once each. The programs compute the
# same; users run with XLA's own settings.
compile_quickly()
