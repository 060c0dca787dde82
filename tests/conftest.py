"""Settings of the whole suite."""

import os

# Most of the suite's time would be XLA compiling small programs once each; without fusion emitters it
# compiles in half the time. The programs compute the same; users run with XLA's own settings.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
