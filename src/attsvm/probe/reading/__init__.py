"""What a fitted probe says of its tokens: margins, contributions, how stable they are, and how good."""
