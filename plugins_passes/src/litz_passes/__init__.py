"""litz-passes: passes that make a compiled model faster or smaller, and that no result depends on.

`plugin` has the hook, with the place of each pass in the order. A folder has the passes of a stage: `joint` (the stages
"joint" and "partitioned"), `graph`, `program`, `schedule`.
"""
