"""The former place of `joint_margin`, which lies in `selections`."""

from attsvm.program.selections import JointMargin as JointMargin, joint_margin as joint_margin
