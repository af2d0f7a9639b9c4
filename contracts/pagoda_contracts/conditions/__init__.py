"""Conditions and their reasons: each stands here once, with its meaning and with what a person should do. The operator writes them;
`pagoda explain` and docs/conditions.md print them.

`types`: the shape of a reason, the condition types. `service`, `health`, `quota`, `adapter`: the reasons. `table`: all of them, found by
name.
"""
