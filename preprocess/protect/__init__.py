"""Personal data and secrets -> tags: `kinds.py` says what is looked for, `scrub.py` is the step."""
